"""What pydantic says of a request, as an error of the tree."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from edgewise.api.context import context_of
from edgewise.api.errors import MissingField, error_response, install_error_handlers
from edgewise.core.errors import EdgewiseError, InvalidRequest, UnknownField


class ErrorDetail(BaseModel):
    """`code` is stable; `param` names the field that is concerned."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """What every refusal looks like."""

    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "Refused; 429 has Retry-After."},
    "5XX": {"model": ErrorBody, "description": "Not possible now."},
}
"""For the OpenAPI document."""


def install_errors(app: FastAPI) -> None:
    """Every error of the application's own routes as the device's API tells it."""
    install_error_handlers(app)
    app.add_exception_handler(RequestValidationError, _on_invalid)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = _explained(error)
    context_of(request.scope).error = told.code
    return error_response(told, request.scope)


def _explained(error: RequestValidationError) -> EdgewiseError:
    """The first problem: most follow from it."""
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"][1:])[:200] or None
    if problem["type"] == "missing":
        return MissingField(f"`{name or 'a JSON body'}` is missing.", param=name)
    if problem["type"] == "extra_forbidden":
        return UnknownField(f"`{name}` is no field of this request.", param=name)
    return InvalidRequest(f"`{name}`: {str(problem['msg'])[:500]}.", param=name)
