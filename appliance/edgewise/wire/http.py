"""What both ends of the HTTP transport agree on: paths, media types, and how soon silence means that the link is gone.

    POST JOBS                           JobRequest -> 202 Accepted; the same key is the same job
    GET  JOBS/{id}/stream?from=1.37     server-sent events: `id:` the place after it, `data:` a Chunk, the last one a Final
    POST JOBS/{id}/ack | /cancel        JobControl -> 204
    GET  CLOUD                          CloudInfo
    PUT, GET BLOBS/{sha256}             bytes; GET answers range requests

Bodies are JSON, or CBOR where the content type says so. Refusals are errors of the tree in OpenAI's form, by their code.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

CLOUD: Final = "/edgewise/v1/cloud"
JOBS: Final = "/edgewise/v1/jobs"
BLOBS: Final = "/edgewise/v1/blobs"

JSON: Final = "application/json"
CBOR: Final = "application/cbor"

KEEPALIVE_S: Final = 2.0
"""A stream of events sends at least a comment so often."""

SILENCE_S: Final = 7.0
"""A stream that brings nothing, not even a comment, for so long has lost its link, although nobody has said so."""


def job_path(id: str, action: str = "") -> str:
    """Path of one job, or of `stream`, `ack` or `cancel` below it."""
    return f"{JOBS}/{quote(id, safe='')}" + (f"/{action}" if action else "")


def blob_path(sha256: str) -> str:
    return f"{BLOBS}/{sha256}"
