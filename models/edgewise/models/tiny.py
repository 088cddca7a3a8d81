"""Tiny random models of every family, complete on disk: configuration, byte-level tokenizer, chat template, weights.

Tests and drills use them where a real model would be too slow or too short of context. The same arguments give the
same bytes on every platform. Run `python -m edgewise.models.tiny DIR --help` to make one by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from edgewise.models.files import ModelFiles, ModelFormat
from edgewise.models.tiny_families import FAMILIES, TINY_FAMILIES, Family, TinyFamily
from edgewise.models.tiny_gguf import write_tiny_gguf
from edgewise.models.tiny_vocab import TinyVocab, build_vocab
from edgewise.models.tiny_weights import DtypeName, TinyShape, encode, generate_weights
from edgewise.models.weights.write import write_safetensors

GGUF_NAME = "tiny.gguf"
END_OF_TEXT, BEGIN = 0, 1  # places among the special tokens
_TORCH_DTYPES: Mapping[DtypeName, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """What to make. Sizes that are None follow from the others.

    Attributes:
        context: Tokens of context, as written in the configuration.
        vocab: Rows of the embedding; the tokenizer has as many tokens or the most its text supports (about 750).
        dtype: Stored encoding of matrices; GGUF keeps vectors in F32, as its tools do.
        shards: Number of safetensors files; more than one adds model.safetensors.index.json.
        config: Entries merged into config.json (safetensors) or the header (GGUF), e.g. a rope scaling.
    """

    family: Family = "llama"
    context: int = 512
    vocab: int = 512
    format: ModelFormat = "safetensors"
    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    intermediate: int | None = None
    tie_embeddings: bool = False
    dtype: DtypeName = "F32"
    shards: int = 1
    config: Mapping[str, Any] | None = None

    def shape(self) -> TinyShape:
        """The sizes, checked; raises ValueError naming what does not fit."""
        head_dim = self.head_dim or self.hidden // self.heads
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r}: must be one of {', '.join(FAMILIES)}")
        if min(self.context, self.hidden, self.layers, self.heads, self.kv_heads, head_dim, self.shards) < 1:
            raise ValueError("every size must be at least 1")
        if head_dim % 2 or self.heads % self.kv_heads:
            raise ValueError("head_dim must be even and heads a multiple of kv_heads")
        return TinyShape(
            family=self.family,
            vocab=self.vocab,
            special=len(TINY_FAMILIES[self.family].chat.special),
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=head_dim,
            intermediate=self.intermediate or 2 * self.hidden,
            tie_embeddings=self.tie_embeddings,
        )


def make_tiny_model(directory: Path, **options: Any) -> Path:
    """Write a tiny random model into `directory` (made if needed); options are the fields of `TinyModel`.

    Returns:
        `directory`. It holds a Hugging Face folder, or one file `tiny.gguf`.

    Raises:
        ValueError: The sizes do not fit together.
    """
    model = TinyModel(**options)
    shape = model.shape()
    vocab = build_vocab(model.vocab, TINY_FAMILIES[model.family].chat.special)
    directory.mkdir(parents=True, exist_ok=True)
    if model.format == "gguf":
        write_tiny_gguf(directory / GGUF_NAME, shape, vocab, model.context, model.seed, model.dtype, model.config or {})
    else:
        _write_folder(directory, model, shape, vocab)
    return directory


def local_files(directory: Path, *, name: str = "tiny") -> ModelFiles:
    """The `ModelFiles` of a model folder on disk, without a store; the digest covers names and contents."""
    paths = {path.name: path for path in sorted(directory.iterdir()) if path.is_file()}
    manifest = {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in paths.items()}
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    kind: ModelFormat = "gguf" if any(key.endswith(".gguf") for key in paths) else "safetensors"
    return ModelFiles(name=name, digest=f"sha256:{digest}", format=kind, paths=paths)


# --- Hugging Face folder ---


def _write_folder(directory: Path, model: TinyModel, shape: TinyShape, vocab: TinyVocab) -> None:
    _write_json(directory / "config.json", _config(model, shape))
    family = TINY_FAMILIES[model.family]
    end = family.ends_turn
    _write_json(directory / "tokenizer.json", _tokenizer(vocab, family.chat.special))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(model.context, family))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": BEGIN, "eos_token_id": [end, END_OF_TEXT] if end else END_OF_TEXT, "pad_token_id": end},
    )
    tensors = [encode(name, array, model.dtype) for name, array in generate_weights(shape, model.seed)]
    if model.shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(model.shards):
        file = f"model-{shard + 1:05d}-of-{model.shards:05d}.safetensors"
        part = tensors[shard :: model.shards]
        write_safetensors(directory / file, part, {"format": "pt"})
        weight_map |= {tensor.name: file for tensor in part}
    total = sum(len(tensor.data) for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(model: TinyModel, shape: TinyShape) -> dict[str, Any]:
    family = TINY_FAMILIES[shape.family]
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": "gemma3_text" if shape.family == "gemma3" else shape.family,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": model.context,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": BEGIN,
        "eos_token_id": family.ends_turn,
        "pad_token_id": family.ends_turn,
        "torch_dtype": _TORCH_DTYPES[model.dtype],
    }
    if family.offset_norms:
        config["query_pre_attn_scalar"] = shape.head_dim
    if shape.family == "qwen3_moe":
        config["moe_intermediate_size"] = shape.intermediate
    return config | dict(family.config) | dict(model.config or {})


def _tokenizer(vocab: TinyVocab, special: tuple[str, ...]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocab.tokens)},
            "merges": [list(pair) for pair in vocab.merges],
        },
    }


def _tokenizer_config(context: int, family: TinyFamily) -> dict[str, Any]:
    special = family.chat.special
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[BEGIN],
        "eos_token": special[family.ends_turn],
        "pad_token": special[family.ends_turn],
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": family.chat.template,
    }


# --- command ---


def main(arguments: list[str] | None = None) -> None:
    """`python -m edgewise.models.tiny DIR [--family ...]`: one flag for each scalar field of `TinyModel`."""
    defaults = TinyModel()
    parser = argparse.ArgumentParser(prog="python -m edgewise.models.tiny", description="Write a tiny random model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default=defaults.family)
    parser.add_argument("--format", choices=get_args(ModelFormat), default=defaults.format)
    parser.add_argument("--dtype", choices=get_args(DtypeName), default=defaults.dtype)
    for size in ("context", "vocab", "seed", "hidden", "layers", "heads", "kv_heads", "shards"):
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, default=getattr(defaults, size))
    parser.add_argument("--head-dim", type=int, default=None)
    parser.add_argument("--intermediate", type=int, default=None)
    parser.add_argument("--tie-embeddings", action="store_true")
    options = vars(parser.parse_args(arguments))
    directory = options.pop("directory")
    try:
        make_tiny_model(directory, **options)
    except ValueError as error:
        parser.error(str(error))
    print(directory)


if __name__ == "__main__":
    main()
