from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.memory import kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.decoder.model import Decoder
from edgewise.models.tiny_families import FAMILIES


def tensors(decoder: Decoder) -> Iterator[torch.Tensor]:
    parameters = decoder.parameters
    yield from (parameters.embedding, parameters.norm, parameters.head)
    yield from (part for table in decoder.ropes.values() for part in (table.cos, table.sin))
    for layer in parameters.layers:
        yield from (t for name in layer.__slots__ if (t := getattr(layer, name)) is not None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_weight_bytes_are_exact(family: str, dtype: str, tied: bool, tiny_model_factory: Callable[..., Any]) -> None:
    files = tiny_model_factory(family=family, tie_embeddings=tied)
    decoder = load_decoder(files, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    resident = {tensor.data_ptr(): tensor.nbytes for tensor in tensors(decoder)}
    assert weight_bytes(read_config(files), dtype) == sum(resident.values())


def test_kv_bytes(tiny_model: Any) -> None:
    config = read_config(tiny_model)  # 2 layers, 2 KV heads of 16
    assert kv_bytes_per_token(config, "float32") == 2 * 2 * 2 * 16 * 4
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 2 * 2 * 16 * 2
    assert kv_bytes_per_token(config, "int8") == 2 * 2 * 2 * (16 + 4)


def test_workspace_grows_with_the_step_and_the_batch(tiny_model: Any) -> None:
    config = read_config(tiny_model)
    base = workspace_bytes(config, 512, 32)
    assert workspace_bytes(config, 1024, 32) > base
    assert workspace_bytes(config, 512, 64) > base
    assert workspace_bytes(config, 512, 32, "cuda") > base  # rows may be padded further there
