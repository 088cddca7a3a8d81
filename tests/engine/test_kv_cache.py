"""Layers with windows keep 16 bits; bytes, capacity and names say so."""

from dataclasses import replace

import pytest
import torch

from edgewise.engine.fit import fit
from edgewise.engine.kv_cache import CACHE_LINE, allocate
from edgewise.engine.numerics import resolve
from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.kv_formats import kv_formats, kv_label
from edgewise.models.decoder.memory import kv_bytes_per_token
from edgewise.models.files import ModelFiles

CPU = torch.device("cpu")
FORMATS = ["float32", "bfloat16", "float16", "int8", "fp8"]


@pytest.fixture
def mixed(tiny_model: ModelFiles) -> DecoderConfig:
    """Two layers, the second with a window."""
    return replace(read_config(tiny_model), windows=(None, 64))


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("windows", [(None, None), (None, 64), (64, 64)])
def test_the_bytes_told_are_the_bytes_allocated(
    tiny_model: ModelFiles, kv_dtype: str, dtype: str, windows: tuple[int | None, ...]
) -> None:
    config = replace(read_config(tiny_model), windows=windows)
    layers = allocate(config, num_pages=3, kv_dtype=kv_dtype, device=CPU, dtype=dtype)
    parts = [p for layer in layers for p in (layer.k, layer.v, layer.k_scale, layer.v_scale) if p is not None]
    assert sum(part.nbytes for part in parts) == 3 * PAGE_TOKENS * kv_bytes_per_token(config, kv_dtype, dtype)
    assert not any(part.view(torch.uint8).any() for part in parts)
    assert all(part.data_ptr() % CACHE_LINE == 0 for part in parts)


def test_window_layers_beside_full_ones_keep_16_bits(mixed: DecoderConfig) -> None:
    assert kv_formats(mixed, "int8", "float16") == ("int8", "float16")
    assert kv_formats(mixed, "fp8", "bfloat16") == ("fp8", "bfloat16")
    assert kv_formats(mixed, "int8", "float32") == ("int8", "bfloat16")
    assert kv_formats(mixed, "float32", "float16") == ("float32", "float32")
    assert kv_formats(replace(mixed, windows=(64, 64)), "int8", "float16") == ("int8", "int8")
    layers = allocate(mixed, num_pages=2, kv_dtype="fp8", device=CPU, dtype="float32")
    assert [layer.k.dtype for layer in layers] == [torch.float8_e4m3fn, torch.bfloat16]
    assert [layer.k_scale is None for layer in layers] == [False, True]


def test_a_label_names_every_format() -> None:
    assert kv_label(("int8",) * 3) == "int8"
    assert kv_label(("bfloat16", "bfloat16", "int8")) == "int8x1+bfloat16x2"


def test_fit_counts_the_exceptions(mixed: DecoderConfig) -> None:
    numerics = resolve(device="cpu", dtype="float32", kv_dtype="int8", quantize="none", cuda=False)
    plain = replace(mixed, windows=(None, None))
    reports = [
        fit(
            config,
            numerics,
            available=2**32,
            memory_fraction=0.8,
            kv_memory_bytes=2**20,
            max_context=None,
            max_running=4,
            max_step_tokens=64,
            page_tokens=PAGE_TOKENS,
        )
        for config in (plain, mixed)
    ]
    assert reports[1].kv_per_token > reports[0].kv_per_token
    assert reports[1].num_pages < reports[0].num_pages
    assert any("int8x1+bfloat16x1" in line for line in reports[1].explain())
