"""The engine on a CUDA device: the CPU's answers in float32, and whole answers in the formats that a GPU really uses."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.files import ModelFiles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no usable CUDA device")


def config_of(files: ModelFiles, **changes: object) -> EngineConfig:
    base = EngineConfig(model=files, device="cuda", dtype="float32", kv_dtype="float32", kv_memory_bytes=2**24)
    return replace(base, **changes)  # type: ignore[arg-type]


def answers(core: Engine, *, temperature: float = 0.0) -> Iterator[list[int]]:
    """One request after the other, of different lengths."""
    for index in range(4):
        prompt = tuple((7 * index + 3 * position) % core.info.vocab_size for position in range(5 + 40 * index))
        sampling = SamplingParams(max_tokens=24, temperature=temperature, seed=index)
        core.add(GenerateRequest(id=str(index), prompt=prompt, sampling=sampling))
        tokens: list[int] = []
        while core.has_work:
            for chunk in core.step():
                assert chunk.finish != "error", chunk.error_message
                tokens += chunk.tokens
        yield tokens


def test_float32_tokens_are_those_of_the_cpu(tiny_model: ModelFiles) -> None:
    gpu = build(config_of(tiny_model), lambda phase, done: None)
    cpu = build(config_of(tiny_model, device="cpu"), lambda phase, done: None)
    assert "sm_" in gpu.info.numeric_class
    assert list(answers(gpu)) == list(answers(cpu))


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_formats_of_a_gpu_give_whole_repeatable_answers(tiny_model: ModelFiles, dtype: str, kv_dtype: str) -> None:
    core = build(config_of(tiny_model, dtype=dtype, kv_dtype=kv_dtype), lambda phase, done: None)
    first = list(answers(core, temperature=0.8))
    core._scheduler.pages.drop_cached()
    assert first == list(answers(core, temperature=0.8))
    assert [len(tokens) for tokens in first] == [24] * 4
    assert core.stats().pages_free + core.stats().pages_cached == core.info.num_pages


def test_auto_takes_the_device_and_books_its_memory(tiny_model: ModelFiles) -> None:
    core = build(EngineConfig(model=tiny_model), lambda phase, done: None)
    assert core.info.device.startswith("cuda")
    assert (core.info.dtype, core.info.kv_dtype) == ("bfloat16", "int8")
    report = core.memory()
    assert report.booked["kv_cache"] > 0
    assert sum(report.booked.values()) <= report.budget_bytes
