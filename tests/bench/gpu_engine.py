"""An engine over random weights that are on the card already, and what a batch of answers takes in it."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from edgewise.engine import build as building
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan
from edgewise.models.decoder.cuda.network import CudaDecoder
from edgewise.models.decoder.cuda.weights import card_weights
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize
from tests.bench.gpu_shapes import write_config

MAX_CONTEXT = 40960
STEP_TOKENS = 32768


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of repetitions: milliseconds of a decoding step, and tokens a second of the prompts before it."""

    step_ms: float
    prompt_tokens_per_s: float


@contextmanager
def engine_of(
    shape: str,
    loaded: Decoder,
    *,
    kv_dtype: str,
    max_running: int,
    quantize: Quantize = "none",
    tuned_in: Path | None = None,
) -> Iterator[Engine]:
    """An engine built as always, but for the reading of weights: they are `loaded`. It is tuned as the records in `tuned_in` say,
    which are made where they are missing; None launches by defaults."""

    def load_network(files: Any, network: Any, **options: Any) -> Any:
        del files, network
        launches = options["launches"]
        plan = DEFAULT_PLAN if launches is None else Plan.of(launches)
        return CudaDecoder(card_weights(loaded.config, loaded.parameters, loaded.ropes, quantize), plan)

    with tempfile.TemporaryDirectory() as folder, patch.object(building, "load_network", load_network):
        files = write_config(shape, Path(folder))
        config = EngineConfig(
            model=files,
            device="cuda",
            dtype="bfloat16",
            kv_dtype=kv_dtype,  # type: ignore[arg-type]
            quantize=quantize,
            max_context=MAX_CONTEXT,
            max_running=max_running,
            max_step_tokens=STEP_TOKENS,
            kv_memory_bytes=_cache_bytes(loaded, kv_dtype),
            prefix_cache=False,
            spill_bytes=0,
            prefill_step_s=10.0,
            kernel_tuning="load",
            kernel_cache_dir=None if tuned_in is None else str(tuned_in),
        )
        core = building.build(config, _tell)
        core._pacer.stretch = 1e6  # prompts first: streams are timed when all prompts are done
        try:
            yield core
        finally:
            core.close()


def _tell(phase: str, done: float) -> None:
    """Say what is being tuned; all else is quick."""
    if phase.startswith("tune"):
        print(f"  {done:4.0%} {phase}", flush=True)


def _cache_bytes(loaded: Decoder, kv_dtype: str) -> int:
    """Room for 140,000 tokens, the longest batch that is measured."""
    config = loaded.config
    values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return 140_000 * values * (2 if kv_dtype == "bfloat16" else 1) * 17 // 16


def time_batch(core: Engine, *, batch: int, context: int, steps: int, seed: int) -> Timing:
    """Answers of `batch` requests with prompts of `context` tokens: whole prompts first, then `steps` steps of all."""
    rng = random.Random(seed)
    sampling = SamplingParams(max_tokens=4096, temperature=0.0)
    requests = [
        GenerateRequest(
            id=f"{seed}-{index}",
            prompt=tuple(rng.randrange(core.info.vocab_size) for _ in range(context)),
            sampling=sampling,
        )
        for index in range(batch)
    ]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for request in requests:
        core.add(request)
    started: set[str] = set()
    while len(started) < batch:
        started |= {chunk.request_id for chunk in core.step()}
    prompts_s = time.perf_counter() - began
    for _ in range(8):  # graphs are captured, and steps are queued
        core.step()
    began = time.perf_counter()
    for _ in range(steps):
        told = core.step()
        assert len(told) == batch, [chunk.error_message for chunk in told if chunk.finish]
    step_s = (time.perf_counter() - began) / steps
    for request in requests:
        core.cancel(request.id)
    while core.has_work:
        core.step()
    return Timing(step_ms=step_s * 1e3, prompt_tokens_per_s=batch * context / prompts_s)
