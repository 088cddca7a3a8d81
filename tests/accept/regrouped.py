"""The starter model with its weights in another order: the same function, as a file in 16 bits that no 4-bit grid fits.

The starter's file is in Q4_1, so its groups of 32 round to 4 bits without loss. Here the dimensions of the hidden state, of every
feed-forward block and of every value head are shuffled, consistently throughout, so that a group holds what 32 groups held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch

from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.files import ModelFiles
from edgewise.models.weights.gguf import header_of
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import WeightReader
from edgewise.models.weights.write import PlannedTensor, gguf_header
from tests.e2e.service import starter_model

_PREAMBLE = 24  # magic, version, counts


def regrouped_starter(folder: Path) -> ModelFiles:
    """Write it into `folder`, 271 MB."""
    starter = starter_model()
    header, out = header_of(starter), folder / "regrouped.gguf"
    with closing(open_weights(starter)) as reader, out.open("wb") as file:
        planned = [_planned(name, info.shape) for name, info in reader.tensors.items()]
        file.write(gguf_header(header.without_tensors()[_PREAMBLE:], len(header.metadata), planned))
        for tensor in _tensors(read_config(starter), reader):
            data = tensor.to(torch.float16 if tensor.dim() > 1 else torch.float32).contiguous().numpy().tobytes()
            file.write(data + bytes(-len(data) % 32))
    return ModelFiles(name="regrouped", digest="sha256:regrouped", format="gguf", paths={out.name: out})


def _planned(name: str, shape: tuple[int, ...]) -> PlannedTensor:
    kind, size = ("F16", 2) if len(shape) > 1 else ("F32", 4)
    return PlannedTensor(name, shape, kind, size * torch.Size(shape).numel())


def _tensors(config: DecoderConfig, reader: WeightReader) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def shuffled(count: int) -> torch.Tensor:
        return torch.randperm(count, generator=generator)

    hidden, heads, values = shuffled(config.hidden_size), config.num_heads, config.num_kv_heads
    inner = [(shuffled(config.ffn_size), shuffled(config.head_dim)) for _ in range(config.num_layers)]
    for name, info in reader.tensors.items():
        tensor = torch.empty(info.shape)
        reader.read_into(name, tensor)
        ffn, head = inner[int(name.split(".")[1])] if name.startswith("blk.") else inner[0]
        match name.split(".")[-2]:
            case "attn_norm" | "ffn_norm" | "output_norm":
                yield tensor[hidden]
            case "token_embd" | "attn_q" | "attn_k":
                yield tensor[:, hidden]
            case "attn_v":
                yield tensor[:, hidden].view(values, config.head_dim, -1)[:, head].flatten(0, 1)
            case "attn_output":
                yield tensor[hidden].view(-1, heads, config.head_dim)[:, :, head].flatten(1)
            case "ffn_gate" | "ffn_up":
                yield tensor[ffn][:, hidden]
            case "ffn_down":
                yield tensor[hidden][:, ffn]
            case other:
                raise AssertionError(f"{other} is no part of the starter")
