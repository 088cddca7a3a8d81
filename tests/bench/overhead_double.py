"""A network double for `tests.bench.overhead`: constant logits, so that all an engine spends is overhead.

It reads as many bytes as a small model's weights in each step, since what Python costs after a step depends on what the step has
left in the caches. `build` is a factory of engine processes: everything of a real engine over a tiny model, but for its network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from edgewise.engine.build import build_parts
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.kernels.paging import AttentionMeta, KVLayer

VOCAB = 49_152
"""Columns of the logits: those of the starter model."""
WEIGHTS = "OVERHEAD_WEIGHTS_MIB"
"""Environment variable: how much a step reads; the starter's weights by default. A busy machine needs less for quick steps."""
_TOKEN = 97


class ConstantNetwork:
    """Implements `engine.runner.Network`: every row of logits is the same, its largest a token with text."""

    def __init__(self, most_rows: int) -> None:
        self._logits = torch.zeros(most_rows, VOCAB)
        self._logits[:, _TOKEN] = 1.0
        self._weights = torch.ones((int(os.environ.get(WEIGHTS, "100")) << 20) // 8, dtype=torch.int64)

    def forward(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        del kv, meta
        self._weights.sum()
        return self._logits[: tokens.shape[0], :1]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[: hidden.shape[0]]


def build(config: EngineConfig, progress: Callable[[str, float], None]) -> Engine:
    """See `engine.core.load_factory`."""
    built = build_parts(replace(config, speculation="off"), progress)  # constant tokens are guessed too easily
    built.runner._network = ConstantNetwork(max(config.max_step_tokens, config.max_running))
    return built.engine
