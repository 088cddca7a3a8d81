"""How jobs are shown to callers and receivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.api.errors import error_body
from edgewise.core.errors import EdgewiseError
from edgewise.edge.outbox.job import Job


def response_of(error: EdgewiseError) -> dict[str, Any]:
    """The response of a job that ended with an error."""
    return {"status_code": error.http_status, "body": error_body(error)}


def show_job(job: Job) -> dict[str, Any]:
    """All of a job but its request."""
    response = job.response
    return {
        "id": job.id,
        "object": "edgewise.job",
        "url": job.url,
        "key": job.key,
        "state": job.state,
        "waiting": job.waiting,
        "priority": job.priority,
        "privacy": job.privacy,
        "policy": job.policy,
        "where": list(job.allowed) or None,
        "created_at": job.created_at,
        "expires_at": job.expires_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "tries": job.tries,
        "deliver": job.deliver,
        "delivery": {
            "state": job.delivery,
            "tries": job.sends,
            "next_at": job.send_at if job.delivery == "pending" else None,
            "error": job.send_error,
            "delivered_at": job.delivered_at,
        },
        "response": response,
        "receipt": None if response is None else _receipt(response["body"]),
    }


def show_result(job: Job) -> dict[str, Any]:
    """What a receiver is sent: the same bytes on every try."""
    shown = show_job(job)
    told = {name: value for name, value in shown.items() if name not in ("delivery", "waiting", "tries", "deliver")}
    return {"type": f"edgewise.job.{job.state}", "timestamp": job.ended_at, "data": told}


def _receipt(body: Mapping[str, Any]) -> Any:
    return body.get("edgewise")
