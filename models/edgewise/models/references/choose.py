"""Which files of a repository make up a model that Edgewise can read: decided from names alone, before any is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from edgewise.core.errors import InvalidRequest, ModelNotFound, UnsupportedModel
from edgewise.core.sizes import file_size
from edgewise.models.files import ModelFormat
from edgewise.models.importing import COMPANIONS, POOLING
from edgewise.models.names import check_file_name

# Formats whose readers run code that the file brings along, or that nobody here reads.
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".msgpack", ".npz", ".npy")
_SPLIT: Final = re.compile(r"-\d{5}-of-\d{5}$")
_SHARD: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_QUANT: Final = re.compile(
    r"(?:^|[-._])((?:I?Q|TQ)\d[A-Za-z0-9_]*|BF16|F16|F32|FP16|FP32|MXFP4[A-Za-z0-9_]*)$", re.IGNORECASE
)
_NO_MODEL: Final = re.compile(r"(?:^|[-._])(mmproj|imatrix)(?:[-._]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The files of a model in a repository.

    Attributes:
        format: Of the weights.
        paths: Paths in the repository; their last parts are the names of the model's files.
        left_out: Paths of the repository that are no part of it.
    """

    format: ModelFormat
    paths: tuple[str, ...]
    left_out: tuple[str, ...]


def choose(sizes: Mapping[str, int], where: str, *, file: str | None = None, quant: str | None = None) -> Chosen:
    """Picks the files.

    Args:
        sizes: Path in the repository -> bytes.
        where: The repository as the user writes it, e.g. "hf:owner/name", for messages.
        file: The one GGUF file that was asked for.
        quant: The quantisation that was asked for, e.g. "Q4_K_M".

    Raises:
        ModelNotFound: What was asked for is not there; the message lists what is.
        InvalidRequest: Several models are there; the message lists how to name each.
        UnsupportedModel: Nothing there that Edgewise reads.
    """
    if file is not None:
        paths = [_named_file(sizes, where, file)]
    elif quant is not None:
        paths = [_by_quant(sizes, where, quant)]
    else:
        paths = _folder(sizes) or [_only_gguf(sizes, where)]
    kind: ModelFormat = "gguf" if paths[0].lower().endswith(".gguf") else "safetensors"
    for path in paths:
        check_file_name(PurePosixPath(path).name)
    return Chosen(kind, tuple(sorted(paths)), tuple(sorted(set(sizes) - set(paths))))


def quantization(path: str) -> str | None:
    """The quantisation that a GGUF file's name ends with, in upper case."""
    found = _QUANT.search(PurePosixPath(path).stem)
    return found[1].upper() if found else None


def _named_file(sizes: Mapping[str, int], where: str, file: str) -> str:
    if file not in sizes:
        ggufs = ", ".join(sorted(path for path in sizes if path.lower().endswith(".gguf"))) or "no GGUF file"
        raise ModelNotFound(f"{where} has no file {file!r}; it has {ggufs}.", param="model")
    if not file.lower().endswith(".gguf"):
        remedy = f"`{where}` takes a folder of safetensors as a whole; a single file must be a GGUF"
        raise UnsupportedModel(f"{where}/{file} is not a model by itself: {remedy}.", param="model")
    return _whole(file, where)


def _by_quant(sizes: Mapping[str, int], where: str, quant: str) -> str:
    ggufs = _ggufs(sizes)
    found = [path for path in ggufs if quantization(path) == quant.upper()]
    whole = [path for path in found if not _is_split(path)]
    if len(whole) == 1:
        return whole[0]
    if len(whole) > 1:
        names = ", ".join(f"`{where}/{path}`" for path in whole)
        raise InvalidRequest(
            f"{where} has {len(whole)} files of quantisation {quant}: name one of {names}.", param="model"
        )
    if found:
        return _whole(found[0], where)
    known = ", ".join(sorted({name for path in ggufs if (name := quantization(path))})) or "no GGUF file"
    raise ModelNotFound(f"{where} has no quantisation {quant!r}; it has {known}.", param="model")


def _folder(sizes: Mapping[str, int]) -> list[str] | None:
    """A Hugging Face folder: the weights at the top level, and what its readers look for beside them."""
    top = [path for path in sizes if "/" not in path]
    weights = [path for path in top if path.endswith(".safetensors") and not path.startswith("adapter_model")]
    usual = [path for path in weights if _SHARD.fullmatch(path)]
    if "config.json" not in top or not weights:
        return None
    # Where the usual names are there, others are the same weights once more (consolidated.safetensors) or extras.
    return [*(usual or weights), *(path for path in sizes if path in COMPANIONS or path == POOLING)]


def stored_name(path: str) -> str:
    """What a chosen file is called in the store: without its folder, but for the one that would be a second config.json."""
    return path if path == POOLING else PurePosixPath(path).name


def _only_gguf(sizes: Mapping[str, int], where: str) -> str:
    ggufs = _ggufs(sizes)
    whole = [path for path in ggufs if not _is_split(path)]
    if len(whole) == 1:
        return whole[0]
    if whole:
        raise InvalidRequest(
            f"{where} holds several models: choose one of {_offers(whole, sizes, where)}.", param="model"
        )
    if ggufs:
        return _whole(ggufs[0], where)
    raise UnsupportedModel(f"{where} {_why_nothing(sizes)}.", param="model")


def _offers(paths: Sequence[str], sizes: Mapping[str, int], where: str) -> str:
    quants = [quantization(path) for path in paths]
    unique = len(set(quants)) == len(quants) and None not in quants
    named = (f"{where}:{quant}" if unique else f"{where}/{path}" for path, quant in zip(paths, quants, strict=True))
    return ", ".join(f"`{name}` ({file_size(sizes[path])})" for name, path in zip(named, paths, strict=True))


def _why_nothing(sizes: Iterable[str]) -> str:
    names = sorted(sizes)
    if any(PurePosixPath(name).name.startswith("adapter_") for name in names):
        return "holds an adapter, not a whole model: merge it into its base model first"
    if pickles := [name for name in names if name.lower().endswith(_PICKLES)]:
        return (
            f"has its weights only in {pickles[0]}, a format whose readers can run code from the file: Edgewise reads "
            f"safetensors and GGUF; convert them, or take a repository or revision that has one"
        )
    if any(name.endswith(".safetensors") for name in names):
        return "has safetensors but no config.json beside them at the top level"
    return "has neither safetensors with a config.json nor a GGUF file"


def _ggufs(sizes: Iterable[str]) -> list[str]:
    return sorted(
        path for path in sizes if path.lower().endswith(".gguf") and not _NO_MODEL.search(PurePosixPath(path).stem)
    )


def _is_split(path: str) -> bool:
    return _SPLIT.search(PurePosixPath(path).stem) is not None


def _whole(path: str, where: str) -> str:
    if _is_split(path):
        raise UnsupportedModel(
            f"{where}/{path} is one part of a split GGUF: merge the parts into one file and import that.", param="model"
        )
    return path
