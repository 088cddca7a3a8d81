"""`hf:owner/name[@revision][/file | :quantisation]`: asks the hub what is there and pins it.

The revision becomes a commit hash. Large files have their SHA-256 in the hub's listing; small ones only a git blob id, so they
are read at once, checked against that, and hashed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from edgewise.core.errors import BadModelFile, DigestMismatch, InvalidRequest, SourceUnavailable
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.importing import LICENCE
from edgewise.models.manifest import ModelInfo, Role, StoredFile
from edgewise.models.names import check_name
from edgewise.models.progress import Progress, ProgressSink
from edgewise.models.references.choose import Chosen, choose, quantization, stored_name
from edgewise.models.references.names import HubName
from edgewise.models.references.resolved import Resolved
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.hub import COMMIT, HubSource, hub_error, hub_headers
from edgewise.models.sources.memory import MemorySource
from edgewise.models.sources.source import Offline
from edgewise.models.sources.transfer import read_small
from edgewise.security.fetch import Response

MAX_LISTING: Final = 32 << 20
MAX_SMALL_FILE: Final = 32 << 20  # the hub itself wants larger files in its large-file storage

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A file in the listing: bytes, and SHA-256 or git blob id as far as the hub says them."""

    size: int
    sha256: str | None
    blob_id: str | None


def resolve_hub(
    place: HubName, access: SourceAccess, *, name: str | None, role: Role, progress: ProgressSink
) -> Resolved:
    """The model at `place`, pinned.

    Args:
        place: The parsed name.
        access: Endpoint, token, and what may be opened.
        name: What to call the model; derived from `place` where None.
        role: What it is for.
        progress: Told of the small files.

    Raises:
        ModelNotFound, NotPermitted: Not there, or not for this user; the message names the remedy.
        InvalidRequest: Several models are there, or no name can be made.
        UnsupportedModel: Nothing there that Edgewise reads.
        BadModelFile: The listing is hostile, or a small file is not what it says.
        SourceUnavailable: The hub cannot be reached, or networks are off.
    """
    shown = f"hf:{place.repo}"
    if access.offline:
        raise Offline(shown)
    chosen_name = _model_name(place, name)
    document = _listing(place, access)
    commit = document.get("sha")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise SourceUnavailable(
            f"{access.hub_endpoint} names no commit for {shown}: it does not speak the hub's protocol."
        )
    listed = _listed_files(document, shown)
    where = f"{shown}@{quote(place.revision, safe='')}" if place.revision else shown
    chosen = choose({path: item.size for path, item in listed.items()}, where, file=place.file, quant=place.quant)
    if name is None and place.quant is None and place.file is None and chosen.format == "gguf":
        quant = quantization(chosen.paths[0])
        chosen_name = _model_name(place if quant is None else _with_quant(place, quant), None)
    files = _pin(place.repo, commit, chosen, listed, access, progress)
    _check_index(files, shown)
    origin = f"{shown}@{commit}" + (f"/{chosen.paths[0]}" if chosen.format == "gguf" else "")
    entry = CatalogEntry(name=chosen_name, info=_info(document, chosen, role), files=files, origin=origin, inspect=True)
    return Resolved(entry, chosen.left_out)


def _model_name(place: HubName, name: str | None) -> str:
    found = place.model_name if name is None else name
    if found is None:
        raise InvalidRequest(f"No model name can be made of hf:{place.repo}: choose one with --name.", param="model")
    return check_name(found)


def _with_quant(place: HubName, quant: str) -> HubName:
    return HubName(owner=place.owner, name=place.name, revision=place.revision, quant=quant)


def _listing(place: HubName, access: SourceAccess) -> dict[str, Any]:
    revision = quote(place.revision or "main", safe="")
    url = f"{access.hub_endpoint}/api/models/{place.repo}/revision/{revision}?blobs=true"
    data, _ = read_small(
        url,
        access.policy,
        most=MAX_LISTING,
        headers=lambda: hub_headers(access),
        accept=lambda response: _raise_error(response, place, access),
        sleep=access.sleep,
    )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceUnavailable(f"{access.hub_endpoint} answers with something that is no JSON.") from error
    if not isinstance(document, dict):
        raise SourceUnavailable(f"{access.hub_endpoint} answers with something that is no listing.")
    return document


def _raise_error(response: Response, place: HubName, access: SourceAccess) -> None:
    if (error := hub_error(response, place.repo, access)) is not None:
        raise error


def _listed_files(document: Mapping[str, Any], shown: str) -> dict[str, _Listed]:
    found: dict[str, _Listed] = {}
    try:
        for item in document["siblings"]:
            lfs = item.get("lfs") or {}
            size = lfs.get("size", item.get("size"))
            if type(size) is not int or not 0 <= size < 1 << 50:
                continue  # a listing without sizes (`blobs` ignored) leaves nothing to choose from, which is said then
            found[_safe_path(item["rfilename"], shown)] = _Listed(
                size=size, sha256=_sha256(lfs.get("sha256")), blob_id=item.get("blobId")
            )
    except (TypeError, KeyError, AttributeError) as error:
        raise SourceUnavailable(f"The hub's listing of {shown} is malformed: {error!r}.") from error
    return found


def _safe_path(path: object, shown: str) -> str:
    text = path if isinstance(path, str) else ""
    parts = text.split("/")
    if not text or "\\" in text or not text.isprintable() or any(part in {"", ".", ".."} for part in parts):
        raise BadModelFile(
            f"{shown} lists a file called {str(path)[:80]!r}: no path inside a repository. Nothing was fetched."
        )
    return text


def _sha256(value: object) -> str | None:
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else None


def _pin(
    repo: str,
    commit: str,
    chosen: Chosen,
    listed: Mapping[str, _Listed],
    access: SourceAccess,
    progress: ProgressSink,
) -> tuple[CatalogFile, ...]:
    files: list[CatalogFile] = []
    for path in chosen.paths:
        item = listed[path]
        source = HubSource(repo=repo, commit=commit, path=path, access=access)
        name = stored_name(path)
        if item.sha256 is not None:
            files.append(CatalogFile(file=StoredFile(name=name, sha256=item.sha256, size=item.size), sources=(source,)))
            continue
        data = _read_file(source, item, access)
        progress(Progress("download", name, len(data), item.size))
        stored = StoredFile(name=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        files.append(CatalogFile(file=stored, sources=(MemorySource(label=source.label, data=data),)))
    return tuple(files)


def _read_file(source: HubSource, item: _Listed, access: SourceAccess) -> bytes:
    if item.size > MAX_SMALL_FILE:
        raise SourceUnavailable(
            f"The hub states no SHA-256 for {source.label} ({item.size} bytes): it cannot be pinned."
        )

    def accept(response: Response) -> None:
        if (error := hub_error(response, source.repo, access)) is not None:
            raise error

    data, _ = read_small(
        source.url,
        access.policy,
        most=MAX_SMALL_FILE,
        headers=lambda: hub_headers(access),
        accept=accept,
        sleep=access.sleep,
    )
    # A git blob's id is the SHA-1 of a header with its size and its bytes (Git internals, "Git objects").
    blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if len(data) != item.size or item.blob_id not in {None, blob_id}:
        raise DigestMismatch(
            f"{source.label} is not the file that the hub lists: {len(data)} bytes with git id {blob_id}."
        )
    return data


def _check_index(files: tuple[CatalogFile, ...], shown: str) -> None:
    """Says before gigabytes are fetched that a shard is missing."""
    sources = {item.file.name: item.sources[0] for item in files}
    index = sources.get(_INDEX)
    if not isinstance(index, MemorySource):
        return
    try:
        wanted = {str(shard) for shard in json.loads(index.data)["weight_map"].values()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadModelFile(f"{shown}: {_INDEX} has no object 'weight_map'.") from error
    if missing := sorted(wanted - set(sources)):
        raise BadModelFile(f"{shown} lacks {missing[0][:80]!r}, one of {len(missing)} files that its index names.")


def _info(document: Mapping[str, Any], chosen: Chosen, role: Role) -> ModelInfo:
    card = document.get("cardData")
    licence = card.get("license") if isinstance(card, dict) else None
    stated = isinstance(licence, str) and LICENCE.fullmatch(licence)
    return ModelInfo(role=role, format=chosen.format, licence_model=str(licence) if stated else "unknown")
