"""What the engine promises, checked on a CUDA device in each KV format; runs where there is no test framework.

`EDGEWISE_TUNED_KERNELS` names a folder of the tuner's records: kernels are launched by those, and measured where
they are missing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, RequestStats, SamplingParams
from edgewise.engine.tiers.mover import KVPageMover
from edgewise.kernels.paging import KVLayer
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.files import ModelFiles

PAGE = 16
KV_FORMATS = ("bfloat16", "int8", "fp8")

Answer = tuple[list[int], RequestStats]


def config_of(files: ModelFiles, kv_dtype: str, **changes: Any) -> EngineConfig:
    base = EngineConfig(
        model=files,
        device="cuda",
        dtype="bfloat16",
        kv_memory_bytes=2**24,
        max_step_tokens=64,
        kernel_tuning="load",
        kernel_cache_dir=os.environ.get("EDGEWISE_TUNED_KERNELS"),
    )
    return replace(base, **{"kv_dtype": kv_dtype, **changes})


def engine(config: EngineConfig) -> Engine:
    return build(config, lambda phase, done: None)


def request(
    core: Engine, index: int, length: int, *, max_tokens: int = 24, temperature: float = 0.0
) -> GenerateRequest:
    rng = random.Random(f"{index} {length}")
    prompt = tuple(rng.randrange(core.info.vocab_size) for _ in range(length))
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=index)
    return GenerateRequest(id=f"{index}-{length}-{time.monotonic_ns()}", prompt=prompt, sampling=sampling)


def answers(core: Engine, requests: Sequence[GenerateRequest]) -> list[Answer]:
    """Ask all at once; in the order of the requests."""
    for each in requests:
        core.add(each)
    tokens: dict[str, list[int]] = {each.id: [] for each in requests}
    stats: dict[str, RequestStats] = {}
    while core.has_work:
        for chunk in core.step():
            assert chunk.finish != "error", chunk.error_message
            tokens[chunk.request_id] += chunk.tokens
            if chunk.stats is not None:
                stats[chunk.request_id] = chunk.stats
    return [(tokens[each.id], stats[each.id]) for each in requests]


def texts(found: Sequence[Answer]) -> list[list[int]]:
    return [tokens for tokens, _ in found]


def alone(core: Engine, sizes: Sequence[tuple[int, int]], **options: Any) -> list[list[int]]:
    """Each request by itself on an empty cache."""
    found = []
    for index, length in sizes:
        core.clear_cache(None)
        found += texts(answers(core, [request(core, index, length, **options)]))
    core.clear_cache(None)
    return found


def float32_is_the_cpus(files: ModelFiles, _folder: Path) -> None:
    """In float32 the GPU's greedy tokens are the CPU's."""
    found = []
    for device in ("cuda", "cpu"):
        core = engine(config_of(files, "float32", dtype="float32", device=device))
        found.append(alone(core, [(index, 5 + 40 * index) for index in range(4)]))
        core.close()
    assert found[0] == found[1], found


def weights_arrive_as_they_are_stored(files: ModelFiles, _folder: Path) -> None:
    """Streamed to the card by several threads, every tensor is the one that the CPU reads."""
    card, host = (load_decoder(files, device=torch.device(where), dtype=torch.bfloat16) for where in ("cuda", "cpu"))
    for own, other in zip(_tensors(card), _tensors(host), strict=True):
        assert torch.equal(own.cpu(), other)


def _tensors(decoder: Decoder) -> list[torch.Tensor]:
    parts: list[Any] = [decoder.parameters, *decoder.parameters.layers]
    values = [getattr(part, field.name) for part in parts for field in fields(part)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def pages_move_bit_for_bit(_files: ModelFiles, _folder: Path) -> None:
    """Pages go to the host and back, every bit pattern, in every format."""
    for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
        raw = torch.randint(0, 256, (2, 40, 3, PAGE, 24 * dtype.itemsize), dtype=torch.uint8, device="cuda")
        k, v = (part.contiguous().view(dtype) for part in raw)
        scale = torch.rand((40, 3, PAGE), device="cuda")
        layer = KVLayer(k, v, scale, scale.clone()) if dtype.itemsize == 1 else KVLayer(k, v)
        mover = KVPageMover([layer, layer] if dtype.itemsize == 2 else [layer])
        before = layer.k.view(torch.uint8).clone()
        pages = random.Random(3).sample(range(40), 17)
        contents = mover.export(pages)
        layer.k.view(torch.uint8).zero_()
        mover.restore(pages, contents)
        assert torch.equal(layer.k.view(torch.uint8)[pages], before[pages]), dtype
        assert layer.k.view(torch.uint8).count_nonzero() == before[pages].count_nonzero(), dtype


def whole_and_repeatable(files: ModelFiles, kv_dtype: str, _folder: Path) -> None:
    core = engine(config_of(files, kv_dtype))
    sizes = [(index, 5 + 40 * index) for index in range(4)]
    first = alone(core, sizes, temperature=0.8)
    assert first == alone(core, sizes, temperature=0.8)
    assert [len(tokens) for tokens in first] == [24] * 4
    stats = core.stats()
    assert stats.pages_free + stats.pages_cached == core.info.num_pages, stats
    core.close()


def the_same_in_a_crowd(files: ModelFiles, kv_dtype: str, _folder: Path) -> None:
    """Greedy tokens in a batch of 16 are those given alone."""
    core = engine(config_of(files, kv_dtype))
    assert core.info.batch_invariant, "this device's libraries do not keep a row's bits in a batch"
    sizes = [(index, 3 + 19 * index) for index in range(16)]
    expected = alone(core, sizes)
    assert texts(answers(core, [request(core, index, length) for index, length in sizes])) == expected
    core.close()


def prefix_hits_change_time_only(files: ModelFiles, kv_dtype: str, _folder: Path) -> None:
    core = engine(config_of(files, kv_dtype))
    (expected,) = alone(core, [(1, 200)])
    (first, _), (again, stats) = [answers(core, [request(core, 1, 200)])[0] for _ in range(2)]
    assert first == again == expected
    assert stats.cached_tokens == 192, stats
    core.close()


def preempted_answers_are_the_same(files: ModelFiles, kv_dtype: str, _folder: Path) -> None:
    """Far too few pages for all: some are preempted, their pages moved to the host and back."""
    roomy = engine(config_of(files, kv_dtype))
    sizes = [(index, 100 + 5 * index) for index in range(8)]
    expected = alone(roomy, sizes, max_tokens=120)
    page_bytes = roomy._scheduler.pages.spill._mover.page_bytes  # type: ignore[union-attr]
    roomy.close()
    core = engine(config_of(files, kv_dtype, kv_memory_bytes=34 * page_bytes, spill_bytes=2**26, prefix_cache=False))
    found = texts(answers(core, [request(core, index, length, max_tokens=120) for index, length in sizes]))
    assert found == expected
    assert core.stats().preemptions > 0
    moved = core._scheduler.pages.spill.stats()
    assert moved.exported > 0, moved
    core.close()


def tiers_bring_pages_back(files: ModelFiles, kv_dtype: str, folder: Path) -> None:
    """From host memory after the device had to give them up; from disk after a restart."""
    config = config_of(
        files, kv_dtype, host_cache_bytes=2**24, disk_cache_dir=str(folder / kv_dtype), disk_cache_bytes=2**26
    )
    core = engine(config)
    (expected,) = texts(answers(core, [request(core, 1, 200)]))
    core.clear_cache("device")
    ((again, stats),) = answers(core, [request(core, 1, 200)])
    assert again == expected
    assert stats.restored_tokens == 192, stats
    core.close()
    second = engine(config)
    ((again, stats),) = answers(second, [request(second, 1, 200)])
    assert again == expected
    assert stats.restored_tokens == 192, stats
    second.close()


ONCE: Sequence[Callable[[ModelFiles, Path], None]] = (
    float32_is_the_cpus,
    weights_arrive_as_they_are_stored,
    pages_move_bit_for_bit,
)
BY_FORMAT: Sequence[Callable[[ModelFiles, str, Path], None]] = (
    whole_and_repeatable,
    the_same_in_a_crowd,
    prefix_hits_change_time_only,
    preempted_answers_are_the_same,
    tiers_bring_pages_back,
)
