"""The one error tree of Edgewise.

Every error that a person or a program outside can meet is an `EdgewiseError`. The class fixes the stable `code`, the HTTP
status and whether a retry can help; the message names the field, the limit and the remedy. Foreign exceptions (SQLite,
socket, torch) are translated into this tree at the boundary where they occur, with the cause kept (`raise ... from error`).
"""

from __future__ import annotations

from typing import ClassVar


class EdgewiseError(Exception):
    """Root of the tree.

    Args:
        message: One sentence for a person: what is wrong, which limit applies, what to do.
        param: Name of the offending request field, if there is one.
        retry_after_s: Seconds after which a retry is worthwhile; only for retryable errors.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}: {self.message!r}, param={self.param!r})"


def reason_of(error: BaseException) -> str:
    """What an error says: one of the tree its sentence, a fault of the program its kind and words."""
    return error.message if isinstance(error, EdgewiseError) else f"{type(error).__name__}: {error}"


# --- the caller's mistake -------------------------------------------------------------------------------------------------


class InvalidRequest(EdgewiseError):
    """A field is missing, malformed or outside its range."""

    code = "invalid_value"
    http_status = 400


class UnsupportedField(InvalidRequest):
    """A field that would change the answer and is not supported here; it is refused by name, never ignored."""

    code = "unsupported_parameter"


class UnknownField(InvalidRequest):
    """A field that neither OpenAI's document nor a documented extension of ours has."""

    code = "unknown_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested answer do not fit the model's context; the message names both numbers."""

    code = "context_length_exceeded"


class ContentRefused(InvalidRequest):
    """A content filter of this service does not let the prompt through."""

    code = "content_filter"


class TemplateFailed(InvalidRequest):
    """The model's chat template refuses these messages."""

    code = "template_error"


class ConstraintFailed(InvalidRequest):
    """An answer cannot go on inside the grammar that was asked for: a dead end, or a grammar beyond its limits."""

    code = "constraint_failed"


class NotAuthenticated(EdgewiseError):
    code = "invalid_api_key"
    http_status = 401


class NotPermitted(EdgewiseError):
    code = "permission_denied"
    http_status = 403


class NotFound(EdgewiseError):
    code = "not_found"
    http_status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class BadMessage(InvalidRequest):
    """A message from another machine that is malformed or beyond a limit: it is dropped and counted, never acted on."""

    code = "bad_message"


class KeyReused(InvalidRequest):
    """An idempotency key came with another request than before."""

    code = "idempotency_key_reused"
    http_status = 409


class Conflict(EdgewiseError):
    """What is asked for is not possible in the state that the thing is in."""

    code = "conflict"
    http_status = 409


class PayloadTooLarge(EdgewiseError):
    code = "payload_too_large"
    http_status = 413


# --- the service cannot now ------------------------------------------------------------------------------------------------


class QueueFull(EdgewiseError):
    """A queue limit is reached; `retry_after_s` estimates when a place is free."""

    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True


class RateLimited(EdgewiseError):
    """Too many wrong passwords, codes or tokens from here or for this name; `retry_after_s` says when one more is looked at."""

    code = "too_many_tries"
    http_status = 429
    retryable = True


class Cancelled(EdgewiseError):
    code = "cancelled"
    http_status = 499


class DeadlineExceeded(EdgewiseError):
    code = "deadline_exceeded"
    http_status = 504


class EngineUnavailable(EdgewiseError):
    """The engine process is starting, restarting or gone."""

    code = "engine_unavailable"
    http_status = 503
    retryable = True


class EngineFault(EdgewiseError):
    """The engine failed on this request, also after the restarts it is allowed."""

    code = "engine_error"
    http_status = 500


class ShuttingDown(EdgewiseError):
    code = "shutting_down"
    http_status = 503
    retryable = True


class HookFailed(EdgewiseError):
    """A hook of this service failed, and without its word no request is answered."""

    code = "hook_failed"
    http_status = 500


class LinkLost(EdgewiseError):
    """The connection to another machine broke, or was never made; what was asked may have been done there."""

    code = "link_lost"
    http_status = 503
    retryable = True


class NoPlace(EdgewiseError):
    """No allowed place can run a stage; the message says why for each."""

    code = "no_place"
    http_status = 503


class StreamGone(EdgewiseError):
    """The items of a stream that were asked for are no longer kept."""

    code = "gone"
    http_status = 410


class RangeNotThere(InvalidRequest):
    """A place beyond the end of a stream or file was asked for."""

    code = "range_not_satisfiable"
    http_status = 416


class StaleFence(EdgewiseError):
    """A worker that has lost its lease tried to write; nothing was written."""

    code = "stale_fencing_token"
    http_status = 409


class OutOfMemory(EdgewiseError):
    """The memory ledger refuses; the message names what was asked for and what is free."""

    code = "insufficient_memory"
    http_status = 503


# --- files, models, configuration ------------------------------------------------------------------------------------------


class StorageError(EdgewiseError):
    """A disk refuses: full, read-only, not permitted."""

    code = "storage_error"
    http_status = 507


class BadModelFile(EdgewiseError):
    """A model file is damaged or hostile; the message names the file and the byte offset."""

    code = "bad_model_file"
    http_status = 422


class UnsupportedModel(EdgewiseError):
    """A well-formed model that this build cannot run; the message names what is missing."""

    code = "unsupported_model"
    http_status = 422


class DigestMismatch(BadModelFile):
    code = "digest_mismatch"


class SourceUnavailable(EdgewiseError):
    """A model source cannot be reached or does not have what was asked for."""

    code = "source_unavailable"
    http_status = 502
    retryable = True


class ConfigError(EdgewiseError):
    """The configuration is refused; the message names the key, its source and the allowed values."""

    code = "bad_configuration"


# --- by code ---------------------------------------------------------------------------------------------------------------

_BY_CODE = {
    kind.code: kind for kind in [*globals().values()] if isinstance(kind, type) and issubclass(kind, EdgewiseError)
}


def error_class(code: str) -> type[EdgewiseError] | None:
    """The class of this module with the stable `code`, for errors that come from another process; None if there is none."""
    return _BY_CODE.get(code)


def is_retryable(code: str | None) -> bool:
    """Whether a retry can help against an error with this code; false for none, and for one that is not of the tree."""
    kind = None if code is None else error_class(code)
    return kind is not None and kind.retryable
