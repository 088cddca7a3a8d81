"""Tiny random models, complete on disk: configuration, byte-level tokenizer, ChatML template, weights.

Tests and drills use them where a real model would be too slow or too short of context. The same arguments give the
same bytes on every platform. Run `python -m edgewise.models.tiny DIR --help` to make one by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgewise.models.files import ModelFiles, ModelFormat
from edgewise.models.tiny_vocab import CHATML_TEMPLATE, SPECIAL_TOKENS, TinyVocab, build_vocab
from edgewise.models.tiny_weights import FAMILIES, Family, TinyShape, generate_weights
from edgewise.models.weights.write import GGUFValue, StoredTensor, write_gguf, write_safetensors

DtypeName = Literal["F32", "F16", "BF16"]
GGUF_NAME = "tiny.gguf"
_END_OF_TEXT, _IM_START, _IM_END = range(3)
_ARCHITECTURES: Mapping[Family, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TORCH_DTYPES: Mapping[DtypeName, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


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
            special=len(SPECIAL_TOKENS),
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
    shape, vocab = model.shape(), build_vocab(model.vocab)
    directory.mkdir(parents=True, exist_ok=True)
    if model.format == "gguf":
        _write_gguf_model(directory / GGUF_NAME, model, shape, vocab)
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
    _write_json(directory / "tokenizer.json", _tokenizer(vocab))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(model.context))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": _IM_START, "eos_token_id": [_IM_END, _END_OF_TEXT], "pad_token_id": _IM_END},
    )
    tensors = [_encode(name, array, model.dtype) for name, array in generate_weights(shape, model.seed)]
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
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[shape.family]],
        "model_type": shape.family,
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
        "bos_token_id": _IM_START,
        "eos_token_id": _IM_END,
        "pad_token_id": _IM_END,
        "torch_dtype": _TORCH_DTYPES[model.dtype],
    }
    if shape.family == "mistral":
        config["sliding_window"] = None
    return config | dict(model.config or {})


def _tokenizer(vocab: TinyVocab) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in enumerate(SPECIAL_TOKENS)],
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


def _tokenizer_config(context: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHATML_TEMPLATE,
    }


def _encode(name: str, array: NDArray[np.float32], dtype: DtypeName) -> StoredTensor:
    if dtype == "F32":
        data = array.astype("<f4").tobytes()
    elif dtype == "F16":
        data = array.astype("<f2").tobytes()
    else:
        bits = array.astype("<f4").view("<u4")
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even; the values are finite and small
        data = (rounded >> 16).astype("<u2").tobytes()
    return StoredTensor(name, array.shape, dtype, data)


# --- GGUF ---


def _write_gguf_model(path: Path, model: TinyModel, shape: TinyShape, vocab: TinyVocab) -> None:
    if shape.family == "mistral":
        raise ValueError("family 'mistral' has no GGUF architecture of its own: use 'llama'")
    write_gguf(path, _gguf_metadata(model, shape, vocab), list(_gguf_tensors(model, shape)))


def _gguf_tensors(model: TinyModel, shape: TinyShape) -> Iterator[StoredTensor]:
    for name, array in generate_weights(shape, model.seed):
        if shape.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            array = _interleave_rope(array, shape.head_dim)
        yield _encode(_gguf_name(name), array, model.dtype if array.ndim > 1 else "F32")


def _interleave_rope(array: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Row order of the llama architecture in GGUF: both halves of each head interleaved (adjacent pairs rotate)."""
    halves = array.reshape(-1, 2, head_dim // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        index, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{index}.{_GGUF_NAMES[part]}.{kind}"
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return f"{names[stem]}.{kind}"


def _gguf_metadata(model: TinyModel, shape: TinyShape, vocab: TinyVocab) -> dict[str, GGUFValue]:
    arch = shape.family
    padding = [f"<unused{index}>" for index in range(shape.vocab - len(vocab.tokens))]
    normal = len(vocab.tokens) - len(SPECIAL_TOKENS)
    return {
        "general.architecture": arch,
        "general.name": "tiny random model",
        f"{arch}.vocab_size": shape.vocab,
        f"{arch}.context_length": model.context,
        f"{arch}.embedding_length": shape.hidden,
        f"{arch}.block_count": shape.layers,
        f"{arch}.feed_forward_length": shape.intermediate,
        f"{arch}.attention.head_count": shape.heads,
        f"{arch}.attention.head_count_kv": shape.kv_heads,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": shape.head_dim,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*vocab.tokens, *padding],
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS) + [1] * normal + [5] * len(padding),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocab.merges],
        "tokenizer.ggml.bos_token_id": _IM_START,
        "tokenizer.ggml.eos_token_id": _IM_END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML_TEMPLATE,
    } | dict(model.config or {})


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
