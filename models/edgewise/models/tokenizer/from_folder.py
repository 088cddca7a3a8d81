"""A tokenizer from the files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_bytes, read_object
from edgewise.models.tokenizer.ends import end_ids
from edgewise.models.tokenizer.tokenizer import Spelling, Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_json(files: ModelFiles, name: str) -> dict[str, Any]:
    """One of a model's JSON files as an object; {} if the model has no such file.

    Raises:
        BadModelFile: Too large or no JSON object; the message names file and byte.
        StorageError: It cannot be read.
    """
    path = files.paths.get(name)
    return {} if path is None else read_object(path, name)


def tokenizer_from_folder(files: ModelFiles) -> Tokenizer:
    """Build the tokenizer of a folder from tokenizer.json and the small files beside it.

    Raises:
        UnsupportedModel: No tokenizer.json, or a vocabulary without exact bytes (WordPiece, Unigram without byte fallback).
        BadModelFile: A damaged file.
    """
    if "tokenizer.json" not in files.paths:
        raise UnsupportedModel(
            f"{files.name}: the model has no tokenizer.json; other tokenizer files are not supported."
        )
    backend = _load_backend(files)
    config = read_json(files, "tokenizer_config.json")
    special_tokens = _special_tokens(read_json(files, "special_tokens_map.json"), config)
    generation, model = read_json(files, "generation_config.json"), read_json(files, "config.json")
    bos_ids = _ids(generation.get("bos_token_id")) or _ids(model.get("bos_token_id"))
    bos_text = backend.id_to_token(bos_ids[0]) if bos_ids else None
    if bos_text is not None:
        special_tokens.setdefault("bos_token", bos_text)
    added = backend.get_added_tokens_decoder()
    ends = _end_ids(backend, special_tokens, (generation.get("eos_token_id"), model.get("eos_token_id")))
    ends |= end_ids((id, token.content) for id, token in added.items() if token.special)
    steps = _decoder_steps(backend)
    return Tokenizer(
        backend,
        _spelling(files, steps),
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        special_tokens=special_tokens,
        eos_ids=ends,
        add_bos=_adds_bos(backend, config, special_tokens),
        prefix_space=any(step.get("type") == "Strip" or step.get("type") == "Metaspace" for step in steps),
    )


def _load_backend(files: ModelFiles) -> tokenizers.Tokenizer:
    raw = read_bytes(files.paths["tokenizer.json"], "tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises nothing more special for a file that it refuses
        raise BadModelFile(f"tokenizer.json, byte 0: not a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Texts by role; later sources win. A token is written as a string or as an object with "content"."""
    found: dict[str, str] = {}
    for source in sources:
        for role in _ROLES:
            value = source.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[role] = text
    return found


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id for id in values if isinstance(id, int) and not isinstance(id, bool) and id >= 0]


def _end_ids(backend: tokenizers.Tokenizer, special: Mapping[str, str], configured: Iterable[object]) -> set[int]:
    ends = {id for value in configured for id in _ids(value)}
    named = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return ends if named is None else ends | {named}


def _adds_bos(backend: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> bool:
    """What tokenizer_config.json says, else what the post-processor of tokenizer.json does to an empty text."""
    told = config.get("add_bos_token")
    if isinstance(told, bool):
        return told
    bos = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    return bos is not None and backend.encode("", add_special_tokens=True).ids[:1] == [bos]


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder as its JSON description: one step, or those of a sequence."""
    if backend.decoder is None:
        return []
    described: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = described.get("decoders")
    return steps if isinstance(steps, list) else [described]


def _spelling(files: ModelFiles, steps: list[dict[str, Any]]) -> Spelling:
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if "ByteFallback" in kinds:
        return Spelling.SENTENCEPIECE
    found = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise UnsupportedModel(
        f"{files.name}: the tokenizer's decoder ({found}) gives no exact bytes; ByteLevel and ByteFallback do."
    )
