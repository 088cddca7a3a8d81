"""`oci:registry/repository[:tag | @digest]`: reads the manifest there and pins it (OCI distribution specification 1.1)."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any, Final

from edgewise.core.errors import BadModelFile, DigestMismatch, InvalidRequest, UnsupportedModel
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, Role, StoredFile
from edgewise.models.names import check_name
from edgewise.models.references.choose import choose, stored_name
from edgewise.models.references.layers import Layer, read_layers
from edgewise.models.references.names import RegistryName
from edgewise.models.references.resolved import Resolved
from edgewise.models.sampling import LIMITS, check_sampling
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.oci import OciSource, RegistryDoor, registry_error, registry_url
from edgewise.models.sources.source import Offline
from edgewise.models.sources.transfer import read_small
from edgewise.security.fetch import Response

MAX_MANIFEST: Final = 4 << 20  # the least that a registry must accept, and the most that one should
_MAX_PARAMS: Final = 1 << 20
_INDEXES: Final = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT: Final = ", ".join([*_MANIFESTS, *sorted(_INDEXES)])
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def resolve_registry(place: RegistryName, access: SourceAccess, *, name: str | None, role: Role) -> Resolved:
    """The model at `place`, pinned by the digest of its manifest.

    Args:
        place: The parsed name.
        access: Credentials, and what may be opened.
        name: What to call the model; derived from `place` where None.
        role: What it is for.

    Raises:
        ModelNotFound, NotPermitted: Not there, or not for this user.
        InvalidRequest: Several models are there, or no name can be made.
        UnsupportedModel: Nothing there that Edgewise reads.
        BadModelFile: The manifest is malformed or hostile; DigestMismatch where it is another one than was named.
        SourceUnavailable: The registry cannot be reached, or networks are off.
    """
    repository = f"library/{place.repository}" if _is_docker_library(place) else place.repository
    shown = f"oci:{place.host}/{repository}"
    if access.offline:
        raise Offline(shown)
    model = place.model_name if name is None else name
    if model is None:
        raise InvalidRequest(f"No model name can be made of {shown}: choose one with --name.", param="model")
    check_name(model)
    registry = _Repository(place.host, repository, access)
    digest, manifest = registry.manifest(place.reference)
    layers = read_layers(manifest, model, shown)
    chosen = choose({layer.name: layer.size for layer in layers.files.values()}, shown)
    files = tuple(registry.pin(layers.files[path]) for path in chosen.paths)
    info = ModelInfo(
        role=role,
        format=chosen.format,
        licence_model="unknown",
        sampling=_sampling(registry.read(layers.params)) if layers.params else {},
    )
    entry = CatalogEntry(name=model, info=info, files=files, origin=f"{shown}@{digest}", inspect=True)
    return Resolved(entry, (*chosen.left_out, *layers.left_out))


def _is_docker_library(place: RegistryName) -> bool:
    return place.host == "registry-1.docker.io" and "/" not in place.repository


class _Repository:
    """Small reads from one repository, through one door."""

    def __init__(self, host: str, repository: str, access: SourceAccess) -> None:
        self._host = host
        self._repository = repository
        self._access = access
        self._door = RegistryDoor(host, repository, access)
        self._shown = f"oci:{host}/{repository}"

    def manifest(self, reference: str) -> tuple[str, Mapping[str, Any]]:
        """(digest, image manifest) of a tag or digest; of an index, the entry for this machine."""
        digest, document = self._document(reference)
        if document.get("mediaType") in _INDEXES or "manifests" in document:
            digest, document = self._document(_pick(document, self._shown))
        if "layers" not in document:
            raise UnsupportedModel(f"{self._shown} is neither an image manifest nor an index of them.", param="model")
        return digest, document

    def pin(self, layer: Layer) -> CatalogFile:
        source = OciSource(host=self._host, repository=self._repository, sha256=layer.sha256, access=self._access)
        stored = StoredFile(name=stored_name(layer.name), sha256=layer.sha256, size=layer.size)
        return CatalogFile(file=stored, sources=(source,))

    def read(self, layer: Layer) -> bytes:
        """A small blob, checked."""
        data = self._get(f"blobs/sha256:{layer.sha256}", _MAX_PARAMS)[0]
        if hashlib.sha256(data).hexdigest() != layer.sha256:
            raise DigestMismatch(f"{self._shown}: blob sha256:{layer.sha256} is another one.")
        return data

    def _document(self, reference: str) -> tuple[str, Mapping[str, Any]]:
        data, headers = self._get(f"manifests/{reference}", MAX_MANIFEST)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        announced = headers.get("docker-content-digest", digest)
        wanted = reference if reference.startswith("sha256:") else announced
        if wanted.startswith("sha256:") and wanted != digest:
            raise DigestMismatch(f"{self._shown}: the manifest has {digest}, not {wanted[:80]}: it is another one.")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadModelFile(f"{self._shown}: the manifest is no JSON.") from error
        if not isinstance(document, dict):
            raise BadModelFile(f"{self._shown}: the manifest is no JSON object.")
        return digest, document

    def _get(self, path: str, most: int) -> tuple[bytes, Mapping[str, str]]:
        return read_small(
            f"{registry_url(self._host, self._repository, self._access)}/{path}",
            self._access.policy,
            most=most,
            headers=lambda: {"Accept": _ACCEPT, **self._door.headers()},
            accept=self._accept,
            sleep=self._access.sleep,
        )

    def _accept(self, response: Response) -> None:
        self._door.accept(response)
        if (error := registry_error(response, self._shown)) is not None:
            raise error


def _pick(index: Mapping[str, Any], shown: str) -> str:
    """The digest of the index's entry for this machine; most models have one entry, or entries without a platform."""
    entries = index.get("manifests")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadModelFile(f"{shown}: the index has no list of manifests.")
    # Attestations lie in an index beside the images that they are about.
    usable = [entry for entry in entries if _platform(entry) != ("unknown", "unknown")]
    mine = ("linux", _MACHINES.get(platform.machine(), platform.machine()))
    for fits in (
        usable if len(usable) == 1 else [],
        [entry for entry in usable if _platform(entry) == mine],
        [entry for entry in usable if _platform(entry) is None],
    ):
        if len(fits) == 1:
            return _digest(fits[0], shown)
    offers = ", ".join("/".join(_platform(entry) or ("any", "any")) for entry in usable) or "nothing"
    raise UnsupportedModel(f"{shown} has no manifest for {'/'.join(mine)}: it offers {offers[:300]}.", param="model")


def _platform(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    found = entry.get("platform")
    return (str(found.get("os")), str(found.get("architecture"))) if isinstance(found, dict) else None


def _digest(entry: Mapping[str, Any], shown: str) -> str:
    digest = str(entry.get("digest"))
    prefix, _, value = digest.partition(":")
    if prefix != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise BadModelFile(f"{shown}: the index names a manifest by {digest[:80]!r}; sha256 is the one read here.")
    return digest


def _sampling(data: bytes) -> dict[str, float]:
    """Of Ollama's parameters those that Edgewise has too, within their limits; the others are about Ollama's engine."""
    try:
        params = json.loads(data)
        return check_sampling({key: params[key] for key in LIMITS if key in params})
    except (ValueError, TypeError, RecursionError) as error:
        raise BadModelFile(f"The model's layer of parameters is refused: {error}.") from error
