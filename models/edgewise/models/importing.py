"""Recognizes a model that the user brings along: one GGUF file, or a Hugging Face folder with safetensors."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.models.manifest import ChatTemplate, ModelInfo, Role
from edgewise.models.names import check_file_name, check_file_path, check_name, suggest_name
from edgewise.models.small_files import read_object
from edgewise.models.weights.file import RangeFile
from edgewise.models.weights.gguf import GGUFHeader, read_gguf_header
from edgewise.models.weights.safetensors_header import parse_safetensors_header

LICENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .()+-]{0,99}")  # an SPDX expression or a short name

# What readers of Hugging Face folders look for. Everything else in a folder is left out, and reported.
COMPANIONS: Final = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "video_preprocessor_config.json",
        "processor_config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "spk_dict.pt",
    }
)
POOLING: Final = "1_Pooling/config.json"
"""How the vectors of a folder of sentence-transformers are made of states."""


PIPELINE: Final = "model_index.json"
"""What a folder of diffusers has and no other."""
_PARTS: Final = frozenset(
    {".json", ".txt", ".model", ".safetensors"}
)  # of a pipeline: configurations, tokenizers, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model found at a path, before anything is copied.

    Attributes:
        name: Proposed name.
        paths: Logical file name -> file, links resolved.
        info: What the headers say.
        left_out: Names in the folder that are not part of the model.
    """

    name: str
    paths: Mapping[str, Path]
    info: ModelInfo
    left_out: tuple[str, ...] = ()


def inspect(path: Path, name: str | None, role: Role) -> Candidate:
    """What `path` holds.

    Args:
        path: A `.gguf` file, or a folder with config.json and *.safetensors.
        name: The name to give; derived from the path where None.
        role: What the model is for.

    Raises:
        InvalidRequest: Neither, or no valid name.
        BadModelFile: It looks like one but is not whole.
    """
    if role == "adapter":
        raise InvalidRequest("An adapter belongs to a model: `edgewise models adapters add FOLDER --base NAME`.")
    resolved = path.expanduser().absolute()
    chosen = check_name(name) if name is not None else _derive_name(resolved)
    if resolved.is_dir():
        return _inspect_folder(resolved, chosen, role)
    if resolved.is_file() and resolved.suffix.lower() == ".gguf":
        return _inspect_gguf(resolved, chosen, role)
    what = "is not there" if not resolved.exists() else "is neither a .gguf file nor a folder"
    raise InvalidRequest(f"{resolved} {what}: give a .gguf file, or a folder with config.json and *.safetensors.")


def _derive_name(path: Path) -> str:
    stem = path.stem if path.suffix.lower() == ".gguf" else path.name
    name = suggest_name(stem)
    if name is None:
        raise InvalidRequest(f"No model name can be made of {path.name!r}: choose one with --name.")
    return check_name(name)


def _inspect_gguf(path: Path, name: str, role: Role) -> Candidate:
    _require_readable(path)
    if "-of-" in path.stem and path.stem.rsplit("-of-", 1)[1].isdigit():
        raise InvalidRequest(f"{path.name} is one part of a split GGUF: merge the parts into one file first.")
    file_name = f"{name}.gguf" if not _is_file_name(path.name) else path.name
    return Candidate(name=name, paths={file_name: path}, info=_gguf_info(read_gguf_header(path), role))


def _gguf_info(header: GGUFHeader, role: Role) -> ModelInfo:
    architecture, licence = header.get_str("general.architecture"), header.get_str("general.license")
    return ModelInfo(
        role=role,
        format="gguf",
        licence_model=licence if licence is not None and LICENCE.fullmatch(licence) else "unknown",
        context=_context(header.get_int(f"{architecture}.context_length")),
        parameters=_elements(tensor.shape for tensor in header.tensors.values()),
        chat_template="none" if header.get_str("tokenizer.chat_template") is None else "in-file",
    )


def _inspect_pipeline(folder: Path, name: str) -> Candidate:
    """A pipeline of diffusers: its index, and the folder of each part."""
    paths: dict[str, Path] = {}
    left_out: list[str] = []
    for child in sorted(folder.rglob("*")):
        path = child.relative_to(folder).as_posix()
        wanted = path == PIPELINE or (path.count("/") == 1 and child.suffix in _PARTS and ".fp16." not in child.name)
        if wanted:
            paths[check_file_path(path)] = _regular(child)
        elif not child.is_dir():
            left_out.append(path)
    weights = [path for file, path in paths.items() if file.endswith(".safetensors")]
    if not weights:
        raise InvalidRequest(f"{folder} has {PIPELINE}, but no part of it has *.safetensors.")
    info = ModelInfo(
        role="diffusion",
        format="safetensors",
        licence_model="unknown",
        parameters=sum(map(_shard_elements, weights)),
        chat_template="none",
    )
    return Candidate(name=name, paths=paths, info=info, left_out=tuple(left_out))


def _inspect_folder(folder: Path, name: str, role: Role) -> Candidate:
    if role == "diffusion" and (folder / PIPELINE).is_file():
        return _inspect_pipeline(folder, name)
    paths: dict[str, Path] = {}
    left_out: list[str] = []
    for child in sorted(folder.iterdir()):
        if child.name in COMPANIONS or child.suffix == ".safetensors":
            paths[check_file_name(child.name)] = _regular(child)
        else:
            left_out.append(child.name)
    if (folder / POOLING).is_file():
        left_out.remove(POOLING.partition("/")[0])
        paths[check_file_path(POOLING)] = _regular(folder / POOLING)
    shards = [file for file in paths if file.endswith(".safetensors")]
    if "config.json" not in paths or not shards:
        missing = "config.json" if "config.json" not in paths else "a *.safetensors file"
        remedy = "give the .gguf file itself" if any(folder.glob("*.gguf")) else "a Hugging Face model folder has both"
        raise InvalidRequest(f"{folder} has no {missing}: {remedy}.")
    _require_shards(paths)
    return Candidate(name=name, paths=paths, info=_folder_info(paths, role), left_out=tuple(left_out))


def complete_info(info: ModelInfo, paths: Mapping[str, Path]) -> ModelInfo:
    """`info` with what it leaves open read from the model's files (logical name -> path).

    Raises:
        BadModelFile: A header is damaged, or a file that an index names is missing.
    """
    if info.format == "gguf":
        (path,) = paths.values()
        found = _gguf_info(read_gguf_header(path), info.role)
    else:
        _require_shards(paths)
        found = _folder_info(paths, info.role)
    return replace(
        info,
        licence_model=found.licence_model if info.licence_model == "unknown" else info.licence_model,
        context=found.context if info.context is None else info.context,
        parameters=found.parameters if info.parameters is None else info.parameters,
        chat_template=found.chat_template if info.chat_template == "unknown" else info.chat_template,
    )


def _regular(path: Path) -> Path:
    """The file behind a name; hub caches hold links. A pipe or device would block or never end."""
    try:
        target = path.resolve(strict=True)
        kind = os.stat(target).st_mode  # noqa: PTH116 - one call for one fact
    except (OSError, RuntimeError) as error:
        raise BadModelFile(f"{path} leads nowhere: {error}.") from error
    if not stat.S_ISREG(kind):
        raise BadModelFile(f"{path} is not a regular file.")
    _require_readable(target)
    return target


def _require_readable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise InvalidRequest(f"{path} may not be read by this user: change its mode, or import as its owner.")


def _require_shards(paths: Mapping[str, Path]) -> None:
    index = paths.get("model.safetensors.index.json")
    if index is None:
        return
    weight_map = read_object(index, str(index)).get("weight_map")
    if not isinstance(weight_map, dict):
        raise BadModelFile(f"{index} has no object 'weight_map'.")
    missing = sorted({str(shard) for shard in weight_map.values()} - set(paths))
    if missing:
        raise BadModelFile(f"{index.parent} lacks {missing[0]}, one of {len(missing)} files that its index names.")


def _folder_info(paths: Mapping[str, Path], role: Role) -> ModelInfo:
    config = read_object(paths["config.json"], str(paths["config.json"]))
    inner = config.get("text_config")  # of a model that sees or hears as well
    text = config if "max_position_embeddings" in config or not isinstance(inner, Mapping) else inner
    return ModelInfo(
        role=role,
        format="safetensors",
        licence_model="unknown",
        context=_context(text.get("max_position_embeddings")),
        parameters=sum(_shard_elements(path) for name, path in paths.items() if name.endswith(".safetensors")),
        chat_template=_template(paths),
    )


def _shard_elements(path: Path) -> int:
    with closing(RangeFile(path, str(path))) as file:
        return _elements(tensor.shape for tensor in parse_safetensors_header(file).values())


def _elements(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _context(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 40 else None


def _template(paths: Mapping[str, Path]) -> ChatTemplate:
    if "chat_template.jinja" in paths or "chat_template.json" in paths:
        return "in-file"
    path = paths.get("tokenizer_config.json")
    return "in-file" if path is not None and "chat_template" in read_object(path, str(path)) else "none"


def _is_file_name(name: str) -> bool:
    try:
        check_file_name(name)
    except InvalidRequest:
        return False
    return True
