"""What callers send to /v1/batches and /v1/files, and how batches and files are shown, as OpenAI's document has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.responses_api.schemas import MAX_METADATA
from edgewise.pipeline.batches.files import StoredFile
from edgewise.pipeline.batches.store import Batch

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 2_592_000
WINDOWS_S = {"24h": 86_400.0}
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class BatchBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    output_expires_after: ExpiresAfter | None = None


def show_file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def show_batch(batch: Batch) -> dict[str, Any]:
    times = {f"{name}_at": _whole(batch.times.get(f"{name}_at")) for name in _TIMES}
    errors = None if batch.errors is None else {"object": "list", "data": list(batch.errors)}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        **times,
        "request_counts": dict(batch.counts),
        "usage": _usage(batch.usage),
        "metadata": batch.metadata,
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["input_tokens"],
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "output_tokens": usage["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
