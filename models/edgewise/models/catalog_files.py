"""Reads catalog entries that an operator wrote: strictly, because every one of them makes the appliance fetch something.

One TOML file holds any number of `[[model]]` tables. Unknown keys, missing digests and names that could leave the store are
refused, each with the file and the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from edgewise.core.errors import ConfigError, InvalidRequest
from edgewise.core.toml import parse_toml
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import StoredFile, build_info
from edgewise.models.names import check_file_name, check_name, check_sha256
from edgewise.models.references.names import parse_hub_name, parse_registry_name
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.sources.hub import HubSource
from edgewise.models.sources.oci import OciSource
from edgewise.models.sources.pypi import REQUIREMENT, PypiSource, WheelPart
from edgewise.models.sources.source import Source
from edgewise.security.fetch import FetchPolicy, check_url

MAX_FILE_BYTES: Final = 1 << 20
_ENTRY: Final = frozenset({"name", "description", "notice", "info", "files"})
_FILE: Final = frozenset({"name", "sha256", "size", "sources"})
_HTTPS: Final = frozenset({"url", "allow_http", "allow_private"})
_PART: Final = frozenset({"requirement", "sha256", "size", "member", "member_size"})


def read_catalog_files(folder: Path, access: SourceAccess) -> Iterator[tuple[Path, CatalogEntry]]:
    """Entries of all `*.toml` files in `folder`, in the order of the file names, each with its file.

    Raises:
        ConfigError: A file cannot be read or is refused.
    """
    for path in sorted(folder.glob("*.toml")):
        for entry in _read(path, access):
            yield path, entry


def _read(path: Path, access: SourceAccess) -> list[CatalogEntry]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes.")
        raw = parse_toml(path.read_text(encoding="utf-8"))
        _known(raw, frozenset({"model"}), "the file")
        return [_entry(_table(model), access) for model in _array(raw, "model")]
    except (ValueError, KeyError, TypeError, OSError, InvalidRequest) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} is refused: {reason}.") from error


def _entry(raw: Mapping[str, Any], access: SourceAccess) -> CatalogEntry:
    _known(raw, _ENTRY, "a model")
    files = tuple(_file(_table(file), access) for file in _array(raw, "files"))
    name = check_name(_text(raw, "name"))
    if not files or len({item.file.name for item in files}) != len(files):
        raise ValueError(f"model {name!r} has no files, or two of one name")
    info = build_info(_table(raw["info"]))
    if info.format == "gguf" and len(files) != 1:
        raise ValueError(f"model {name!r} is GGUF and must have exactly one file")
    texts = {"description": "", "notice": "", **raw}
    return CatalogEntry(
        name=name, info=info, files=files, description=_text(texts, "description"), notice=_text(texts, "notice")
    )


def _file(raw: Mapping[str, Any], access: SourceAccess) -> CatalogFile:
    _known(raw, _FILE, "a file")
    stored = StoredFile(
        name=check_file_name(_text(raw, "name")), sha256=check_sha256(_text(raw, "sha256")), size=_size(raw, "size")
    )
    sources = tuple(_source(_table(source), stored, access) for source in _array(raw, "sources"))
    if not sources:
        raise ValueError(f"file {stored.name!r} has no source")
    return CatalogFile(file=stored, sources=sources)


def _source(raw: Mapping[str, Any], stored: StoredFile, access: SourceAccess) -> Source:
    if "pypi" in raw:
        _known(raw, frozenset({"pypi"}), "a pypi source")
        parts = tuple(_part(_table(part)) for part in _array(raw, "pypi"))
        if sum(part.member_size for part in parts) != stored.size:
            raise ValueError(f"the parts of a pypi source do not add up to the file's {stored.size} bytes")
        return PypiSource(parts)
    if "hf" in raw:
        _known(raw, frozenset({"hf"}), "an hf source")
        return _hub_source(_text(raw, "hf"), access)
    if "oci" in raw:
        _known(raw, frozenset({"oci"}), "an oci source")
        place = parse_registry_name(f"oci:{_text(raw, 'oci')}")
        return OciSource(host=place.host, repository=place.repository, sha256=stored.sha256, access=access)
    _known(raw, _HTTPS, "a source")
    url = _text(raw, "url")
    if url.startswith("file:"):
        return FileSource(_file_path(url))
    allow_http, allow_private = _flag(raw, "allow_http"), _flag(raw, "allow_private")
    check_url(url, FetchPolicy(allow_http=allow_http))
    return HttpsSource(url=url, allow_http=allow_http, allow_private=allow_private)


def _hub_source(text: str, access: SourceAccess) -> HubSource:
    place = parse_hub_name(f"hf:{text}")
    if place.file is None or place.revision is None:
        raise ValueError(f"hf source {text!r} is not OWNER/NAME@COMMIT/FILE")
    return HubSource(repo=place.repo, commit=place.revision, path=place.file, access=access)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise ValueError(f"{url!r} is not file:///ABSOLUTE/PATH")
    return Path(path)


def _part(raw: Mapping[str, Any]) -> WheelPart:
    _known(raw, _PART, "a part of a pypi source")
    requirement, member = _text(raw, "requirement"), _text(raw, "member")
    if not REQUIREMENT.fullmatch(requirement):
        raise ValueError(f"requirement {requirement!r} is not NAME==VERSION")
    if PurePosixPath(member).is_absolute() or ".." in PurePosixPath(member).parts:
        raise ValueError(f"member {member!r} is not a path inside a wheel")
    return WheelPart(
        requirement=requirement,
        sha256=check_sha256(_text(raw, "sha256")),
        size=_size(raw, "size"),
        member=member,
        member_size=_size(raw, "member_size"),
    )


def _known(raw: Mapping[str, Any], allowed: frozenset[str], what: str) -> None:
    if unknown := sorted(set(raw) - allowed):
        raise ValueError(f"{what} has the unknown key {unknown[0]!r} (known: {', '.join(sorted(allowed))})")


def _table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a table")
    return value


def _array(raw: Mapping[str, Any], key: str) -> Sequence[object]:
    value = raw[key]
    if not isinstance(value, list):
        raise TypeError(f"{key} is not an array")
    return value


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is not text")
    return value


def _size(raw: Mapping[str, Any], key: str) -> int:
    value = raw[key]
    if type(value) is not int or not 0 < value < 1 << 50:
        raise TypeError(f"{key} is not a positive number of bytes")
    return value


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        raise TypeError(f"{key} is neither true nor false")
    return value
