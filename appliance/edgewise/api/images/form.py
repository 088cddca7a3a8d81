"""Read the form of POST /v1/images/edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from edgewise.api.form import FormShape
from edgewise.api.form import read_form as read
from edgewise.api.images.schemas import EditBody

_SHAPE: Final = FormShape(
    main="image",
    what="the pictures",
    files=frozenset({"image", "mask"}),
    known=frozenset(EditBody.model_fields),
    texts=frozenset({"prompt", "model", "size", "output_format", "negative_prompt"}),
    one_each={"image": "pictures are drawn from one picture each"},
)


@dataclass(frozen=True, slots=True)
class EditForm:
    """Attributes:
    fields: As a JSON body would have them.
    image, mask: Encoded pictures as they were sent.
    """

    fields: Mapping[str, Any]
    image: bytes
    mask: bytes | None


async def read_form(request: Request, *, max_bytes: int, silence_s: float) -> EditForm:
    """The form of a request. Raises as `edgewise.api.form.read_form`."""
    form = await read(request, _SHAPE, max_bytes=max_bytes, silence_s=silence_s)
    return EditForm(form.fields, form.files["image"], form.files.get("mask"))
