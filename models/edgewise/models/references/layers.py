"""Which layers of a registry's manifest are files of a model, and what they are called: decided from the manifest alone.

Read are artifacts whose layers are plain files: those of ORAS and the like (title annotation), CNCF ModelPack
(`application/vnd.cncf.model.*.raw` with a file path), Docker's model runner, and Ollama. Archives are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.names import check_file_name, check_sha256

_TITLE: Final = "org.opencontainers.image.title"
_PATHS: Final = ("org.cncf.model.filepath", "org.cnai.model.filepath")
_UNPACK: Final = "io.deis.oras.content.unpack"
_OLLAMA: Final = "application/vnd.ollama.image."
_GGUF_TYPES: Final = frozenset(
    {f"{_OLLAMA}model", "application/vnd.docker.ai.gguf.v3", "application/vnd.cncf.model.weight.v1.gguf"}
)
_PARAMS: Final = f"{_OLLAMA}params"
_ADAPTER: Final = f"{_OLLAMA}adapter"
_ARCHIVE: Final = re.compile(r"[.+]tar(\+(gzip|zstd))?$|\.tar\.gzip$|\.config\.tar$|[.+]zip$")
_MOST_LAYERS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer that is a file: name, digest in hex, bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A manifest, sorted.

    Attributes:
        files: By name.
        params: The layer with Ollama's recommended sampling, if there is one.
        left_out: What the other layers are.
    """

    files: Mapping[str, Layer]
    params: Layer | None
    left_out: tuple[str, ...]


def read_layers(manifest: Mapping[str, Any], model: str, shown: str) -> Layers:
    """The layers of an image manifest (OCI image specification 1.1; Docker's schema 2 has the same members).

    Args:
        manifest: The parsed JSON, trusted in nothing.
        model: The model's name, for a GGUF that the manifest gives none.
        shown: The place, for messages.

    Raises:
        BadModelFile: Malformed, or a name or digest that is none.
        UnsupportedModel: A part of the model is packed in an archive, or an adapter.
    """
    files: dict[str, Layer] = {}
    left_out: list[str] = []
    params: Layer | None = None
    for raw in _array(manifest, shown):
        kind, annotations = _kind(raw, shown), _annotations(raw, shown)
        name = _name(kind, annotations, model)
        _refuse_archive(kind, annotations, name, shown)
        if kind == _PARAMS:
            params = _layer("params", raw, shown)
        elif name is None or (kind.startswith(_OLLAMA) and kind not in _GGUF_TYPES):
            left_out.append(name or kind)
        elif name in files:
            raise BadModelFile(f"{shown} has two layers called {name!r}.")
        else:
            files[name] = _layer(name, raw, shown)
    return Layers(files=files, params=params, left_out=tuple(left_out))


def _array(manifest: Mapping[str, Any], shown: str) -> list[Mapping[str, Any]]:
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS or not all(isinstance(it, dict) for it in layers):
        raise BadModelFile(f"{shown} has no list of layers in its manifest.")
    return layers


def _kind(raw: Mapping[str, Any], shown: str) -> str:
    kind = raw.get("mediaType")
    if not isinstance(kind, str):
        raise BadModelFile(f"{shown} has a layer without a media type.")
    return kind


def _annotations(raw: Mapping[str, Any], shown: str) -> Mapping[str, Any]:
    annotations = raw.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise BadModelFile(f"{shown} has malformed annotations.")
    return annotations


def _name(kind: str, annotations: Mapping[str, Any], model: str) -> str | None:
    for key in (*_PATHS, _TITLE):
        value = annotations.get(key)
        if isinstance(value, str) and value:
            return value
    return f"{model}.gguf" if kind in _GGUF_TYPES else None


def _refuse_archive(kind: str, annotations: Mapping[str, Any], name: str | None, shown: str) -> None:
    if kind == _ADAPTER:
        raise UnsupportedModel(f"{shown} is an adapter over another model: merge them first.", param="model")
    weights = "weight" in kind or name is not None
    if weights and (annotations.get(_UNPACK) == "true" or _ARCHIVE.search(kind)):
        raise UnsupportedModel(
            f"{shown} packs {(name or kind)[:80]!r} as an archive ({kind[:100]}): push the model's files as layers of their "
            f"own (`oras push`, or ModelPack's raw layers).",
            param="model",
        )


def _layer(name: str, raw: Mapping[str, Any], shown: str) -> Layer:
    digest, size = raw.get("digest"), raw.get("size")
    if not isinstance(digest, str) or not digest.startswith("sha256:"):
        raise BadModelFile(
            f"{shown}: layer {name[:80]!r} has the digest {str(digest)[:80]!r}; sha256 is the one read here."
        )
    if type(size) is not int or not 0 <= size < 1 << 50:
        raise BadModelFile(f"{shown}: layer {name[:80]!r} has no size.")
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        raise BadModelFile(
            f"{shown}: a layer is called {name[:80]!r}, which leads out of the model. Nothing was fetched."
        )
    check_file_name(PurePosixPath(name).name)
    return Layer(name=name, sha256=check_sha256(digest.removeprefix("sha256:")), size=size)
