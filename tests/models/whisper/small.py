"""A Whisper with small random weights, as transformers has it and as a folder of ours."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from edgewise.models.files import ModelFiles
from edgewise.models.tiny import make_tiny_model


def small_whisper(*, vocabulary: int = 200, frames: int = 50, max_text: int = 40) -> WhisperForConditionalGeneration:
    """Two layers a side, 4 heads of 16; `frames` of sound a window, no multiple of a page."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=64,
        num_mel_bins=80,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=96,
        max_source_positions=frames,
        max_target_positions=max_text,
        pad_token_id=vocabulary - 1,
        bos_token_id=vocabulary - 1,
        eos_token_id=vocabulary - 1,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)  # biases and norms begin as zeros and ones
    return model


def folder(model: WhisperForConditionalGeneration, path: Path) -> ModelFiles:
    """The model as `save_pretrained` writes it."""
    model.save_pretrained(path)
    return files_of(path)


def with_words(path: Path) -> Path:
    """The folder with a decoder's tokenizer, and with the tokens that begin and end a text."""
    plain = make_tiny_model(path.parent / f"{path.name}-plain")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, path)
    generation = {"eos_token_id": 9, "decoder_start_token_id": 1, "no_timestamps_token_id": 12}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def files_of(path: Path) -> ModelFiles:
    return ModelFiles(
        name="small", digest="sha256:0", format="safetensors", paths={one.name: one for one in path.iterdir()}
    )


def ctranslate2(state: Mapping[str, torch.Tensor], *, layers: int) -> bytes:
    """model.bin of CTranslate2's format 6 with these weights in 16 bits."""
    variables: dict[str, torch.Tensor] = {
        "decoder/embeddings/weight": state["model.decoder.embed_tokens.weight"],
        "decoder/scale_embeddings": torch.tensor(0, dtype=torch.int8),
        "encoder/num_heads": torch.tensor(4, dtype=torch.int16),
    }
    for kind in ("encoder", "decoder"):
        variables[f"{kind}/position_encodings/encodings"] = state[f"model.{kind}.embed_positions.weight"]
        variables |= _both(state, f"model.{kind}.layer_norm", f"{kind}/layer_norm", norm=True)
        for index in range(layers):
            variables |= _layer(state, f"model.{kind}.layers.{index}", f"{kind}/layer_{index}", cross=kind == "decoder")
    for conv in ("conv1", "conv2"):
        variables |= _both(state, f"model.encoder.{conv}", f"encoder/{conv}")
    out = struct.pack("<I", 6) + _text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        code, data = _stored(value)
        out += _text(name) + struct.pack(f"<B{value.dim()}IBI", value.dim(), *value.shape, code, len(data)) + data
    return out + struct.pack("<I", 1) + _text("decoder/projection/weight") + _text("decoder/embeddings/weight")


def _layer(state: Mapping[str, torch.Tensor], theirs: str, ours: str, *, cross: bool) -> dict[str, torch.Tensor]:
    found = _fused(state, f"{theirs}.self_attn", ("q_proj", "k_proj", "v_proj"), f"{ours}/self_attention/linear_0")
    found |= _both(state, f"{theirs}.self_attn.out_proj", f"{ours}/self_attention/linear_1")
    found |= _both(state, f"{theirs}.self_attn_layer_norm", f"{ours}/self_attention/layer_norm", norm=True)
    if cross:
        found |= _both(state, f"{theirs}.encoder_attn.q_proj", f"{ours}/attention/linear_0")
        found |= _fused(state, f"{theirs}.encoder_attn", ("k_proj", "v_proj"), f"{ours}/attention/linear_1")
        found |= _both(state, f"{theirs}.encoder_attn.out_proj", f"{ours}/attention/linear_2")
        found |= _both(state, f"{theirs}.encoder_attn_layer_norm", f"{ours}/attention/layer_norm", norm=True)
    found |= _both(state, f"{theirs}.fc1", f"{ours}/ffn/linear_0") | _both(
        state, f"{theirs}.fc2", f"{ours}/ffn/linear_1"
    )
    return found | _both(state, f"{theirs}.final_layer_norm", f"{ours}/ffn/layer_norm", norm=True)


def _both(state: Mapping[str, torch.Tensor], theirs: str, ours: str, *, norm: bool = False) -> dict[str, torch.Tensor]:
    names = ("gamma", "beta") if norm else ("weight", "bias")
    return {f"{ours}/{names[0]}": state[f"{theirs}.weight"], f"{ours}/{names[1]}": state[f"{theirs}.bias"]}


def _fused(
    state: Mapping[str, torch.Tensor], theirs: str, parts: tuple[str, ...], ours: str
) -> dict[str, torch.Tensor]:
    weights = [state[f"{theirs}.{part}.weight"] for part in parts]
    biases = [state.get(f"{theirs}.{part}.bias", torch.zeros(weights[0].shape[0])) for part in parts]
    return {f"{ours}/weight": torch.cat(weights), f"{ours}/bias": torch.cat(biases)}


def _stored(value: torch.Tensor) -> tuple[int, bytes]:
    if value.is_floating_point():
        return 4, value.half().numpy().tobytes()
    return (1 if value.dtype == torch.int8 else 2), value.numpy().tobytes()


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def ctranslate2_settings(end: int) -> dict[str, Any]:
    """config.json beside model.bin."""
    return {
        "alignment_heads": [[1, 0], [1, 2]],
        "lang_ids": [end + 2],
        "suppress_ids": [1, 2, end + 1],
        "suppress_ids_begin": [220, end],
    }
