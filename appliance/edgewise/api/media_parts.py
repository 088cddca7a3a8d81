"""Pictures, film and sound in messages, in the forms of three APIs, as `Attachment`s. Nothing is fetched here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from edgewise.api.checks import a_string, an_object, only
from edgewise.api.errors import WrongType
from edgewise.core.errors import InvalidRequest
from edgewise.models.media.source import check_scheme
from edgewise.pipeline.attachments import Attachment, Detail

DETAILS: Final = ("auto", "low", "high")
MAX_FRAMES: Final = 768
_FORMAT: Final = re.compile(r"[a-z0-9]{1,12}", re.ASCII)
_TYPE: Final = re.compile(r"image/[a-z0-9.+-]{1,40}", re.ASCII)


def content_of(parts: Sequence[str | Attachment]) -> str | list[dict[str, Any]]:
    """The content of a `ChatInput`'s message: texts joined by line breaks, or a list of parts where media are among them."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in parts]


def attachments_of(parts: Sequence[str | Attachment]) -> list[Attachment]:
    return [part for part in parts if isinstance(part, Attachment)]


def image_url_part(part: dict[str, Any], where: str) -> Attachment:
    """OpenAI's chat form: {"type": "image_url", "image_url": {"url": ..., "detail": ...}}. Raises `InvalidRequest`."""
    place = f"{where}.image_url"
    value = an_object(part.get("image_url"), place)
    only(value, frozenset({"url", "detail"}), place)
    return Attachment(
        kind="image",
        param=f"{place}.url",
        urls=(_url(value, "url", place),),
        detail=_detail(value.get("detail"), f"{place}.detail"),
    )


def video_url_part(part: dict[str, Any], where: str) -> Attachment:
    """{"type": "video_url", "video_url": {"url": ..., "fps": ..., "frames": ...}}; a list of URLs of pictures in place of one are
    the frames of a film, taken at `fps`; `file_id` in place of it is an uploaded file. Raises `InvalidRequest`."""
    place = f"{where}.video_url"
    value = an_object(part.get("video_url"), place)
    only(value, frozenset({"url", "file_id", "fps", "frames"}), place)
    given, file = value.get("url"), None
    urls: tuple[str, ...] = ()
    if value.get("file_id") is not None:
        file = a_string(value, "file_id", place)
    elif isinstance(given, list) and given:
        urls = tuple(_url({f"url[{index}]": one}, f"url[{index}]", place) for index, one in enumerate(given))
    else:
        urls = (_url(value, "url", place),)
    return Attachment(
        kind="video",
        param=f"{place}.url" if file is None else f"{place}.file_id",
        urls=urls,
        file=file,
        fps=_number(value, "fps", place, least=0.01, most=60.0),
        frames=None
        if value.get("frames") is None
        else int(_number(value, "frames", place, least=1, most=MAX_FRAMES) or 1),
    )


def input_audio_part(part: dict[str, Any], where: str) -> Attachment:
    """OpenAI's chat form: {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}. The bytes say what it is.

    Raises `InvalidRequest`.
    """
    place = f"{where}.input_audio"
    value = an_object(part.get("input_audio"), place)
    only(value, frozenset({"data", "format"}), place)
    form = a_string(value, "format", place)
    if not _FORMAT.fullmatch(form):
        raise InvalidRequest(
            f"'{place}.format' is '{form[:40]}': it must name a format of sound, as wav or mp3.",
            param=f"{place}.format",
        )
    url = f"data:audio/{form};base64,{a_string(value, 'data', place)}"
    return Attachment(kind="audio", param=f"{place}.data", urls=(url,))


def _number(value: dict[str, Any], name: str, where: str, *, least: float, most: float) -> float | None:
    """Whole where `least` is."""
    found = value.get(name)
    if found is None:
        return None
    whole = isinstance(least, int)
    if isinstance(found, bool) or not isinstance(found, int if whole else int | float):
        raise WrongType(f"'{where}.{name}' must be a {'whole ' if whole else ''}number.", param=f"{where}.{name}")
    if not least <= found <= most:
        raise InvalidRequest(
            f"'{where}.{name}' is {str(found)[:40]}: it must be from {least:g} to {most:g}.", param=f"{where}.{name}"
        )
    return float(found)


def input_image_part(part: dict[str, Any], where: str) -> Attachment:
    """The form of the Responses API: {"type": "input_image", "image_url": ..., "detail": ...}. Raises `InvalidRequest`."""
    only(part, frozenset({"type", "image_url", "detail", "file_id", "prompt_cache_breakpoint"}), where)
    if part.get("file_id") is not None:
        return Attachment(kind="image", param=f"{where}.file_id", urls=(), file=a_string(part, "file_id", where))
    return Attachment(
        kind="image",
        param=f"{where}.image_url",
        urls=(_url(part, "image_url", where),),
        detail=_detail(part.get("detail"), f"{where}.detail"),
    )


def image_block(block: dict[str, Any], where: str) -> Attachment:
    """Anthropic's form: {"type": "image", "source": {"type": "base64", "media_type": ..., "data": ...}}, or a source of the type
    "url". Raises `InvalidRequest`."""
    place = f"{where}.source"
    source = an_object(block.get("source"), place)
    kind = source.get("type")
    if kind == "url":
        only(source, frozenset({"type", "url"}), place)
        return Attachment(kind="image", param=f"{place}.url", urls=(_url(source, "url", place),))
    if kind == "file":
        only(source, frozenset({"type", "file_id"}), place)
        return Attachment(kind="image", param=f"{place}.file_id", urls=(), file=a_string(source, "file_id", place))
    if kind != "base64":
        raise InvalidRequest(
            f"'{place}.type' is '{str(kind)[:40]}': it must be 'base64', 'url' or 'file'.", param=f"{place}.type"
        )
    only(source, frozenset({"type", "media_type", "data"}), place)
    media_type = a_string(source, "media_type", place)
    if not _TYPE.fullmatch(media_type):
        raise InvalidRequest(
            f"'{place}.media_type' is '{media_type[:40]}': it must name a type of pictures, as image/png.",
            param=f"{place}.media_type",
        )
    url = f"data:{media_type};base64,{a_string(source, 'data', place)}"
    return Attachment(kind="image", param=f"{place}.data", urls=(url,))


def _url(value: dict[str, Any], name: str, where: str) -> str:
    url = a_string(value, name, where)
    check_scheme(url, f"{where}.{name}")
    return url


def _detail(value: Any, where: str) -> Detail:
    if value is None:
        return "auto"
    if value not in DETAILS:
        raise InvalidRequest(f"'{where}' is '{str(value)[:40]}': it must be one of {', '.join(DETAILS)}.", param=where)
    return cast("Detail", value)
