"""Find a model's chat template among its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.core.errors import BadModelFile, TemplateFailed
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_bytes
from edgewise.models.templates.template import DEFAULT, ChatTemplate
from edgewise.models.tokenizer.from_folder import read_json
from edgewise.models.tokenizer.tokenizer import Tokenizer
from edgewise.models.weights.gguf import GGUFHeader, header_of

MAX_TEMPLATE_BYTES = 1 << 20
_GGUF_KEY = "tokenizer.chat_template"


def load_template(files: ModelFiles, tokenizer: Tokenizer, header: GGUFHeader | None = None) -> ChatTemplate:
    """The model's chat template; its render process is being started when this returns.

    `header` is that of a GGUF model where it has been read already.

    Raises:
        TemplateFailed: The model has none; it can serve completions.
        BadModelFile: A damaged file.
    """
    sources = _from_header(header or header_of(files)) if files.format == "gguf" else _from_folder(files)
    if DEFAULT not in sources:
        raise TemplateFailed(f"The model '{files.name}' has no chat template: use /v1/completions with it.")
    template = ChatTemplate(sources, tokenizer.special_tokens)
    template.warm_up()
    return template


def _from_header(header: GGUFHeader) -> dict[str, str]:
    sources: dict[str, str] = {}
    for name in header.get_strings(_GGUF_KEY + "s") or []:  # names of further templates, each under a key of its own
        _put(sources, name, header.get_str(f"{_GGUF_KEY}.{name}"))
    _put(sources, DEFAULT, header.get_str(_GGUF_KEY))
    return sources


def _from_folder(files: ModelFiles) -> dict[str, str]:
    """chat_template.jinja wins over chat_template.json, which wins over tokenizer_config.json, as in transformers."""
    sources = _named(read_json(files, "tokenizer_config.json").get("chat_template"))
    sources |= _named(read_json(files, "chat_template.json").get("chat_template"))
    _put(sources, DEFAULT, _read_text(files, "chat_template.jinja"))
    prefix = "additional_chat_templates/"
    for name in files.paths:
        if name.startswith(prefix) and name.endswith(".jinja"):
            _put(sources, name.removeprefix(prefix).removesuffix(".jinja"), _read_text(files, name))
    return sources


def _named(value: object) -> dict[str, str]:
    """A template as one string, or as a list of {"name", "template"}."""
    sources: dict[str, str] = {}
    entries: list[Any] = value if isinstance(value, list) else [{"name": DEFAULT, "template": value}]
    for entry in entries:
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
            _put(sources, entry["name"], entry["template"])
    return sources


def _put(sources: dict[str, str], name: str, text: str | None) -> None:
    if text is None:
        return
    if len(text) > MAX_TEMPLATE_BYTES:
        raise BadModelFile(f"The chat template '{name}' has {len(text)} characters; the limit is {MAX_TEMPLATE_BYTES}.")
    sources[name] = text


def _read_text(files: ModelFiles, name: str) -> str | None:
    path = files.paths.get(name)
    if path is None:
        return None
    try:
        return read_bytes(path, name, most=MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{name}, byte {error.start}: not UTF-8") from error
