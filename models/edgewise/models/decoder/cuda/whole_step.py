"""A whole step of a decoder with random weights, two layers of it: for the tuner, which checks and times plans by it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import torch

from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.kernels.rope import rope_tables
from edgewise.kernels.triton.attention_trials import random_pages
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.fused import FusedStep
from edgewise.models.decoder.cuda.weights import card_weights
from edgewise.models.decoder.kv_formats import kv_formats
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.parameters import DecoderParameters, allocate

_LAYERS = 2
_TIMED_CONTEXT, _CHECKED_CONTEXT = 256, 600
# Logits of two layers to those of the default plan: forms differ by the rounding of weights and pages alone.
_LIMIT = 0.05
# With activations in fp8 the least difference makes a code fall to the other side, a sixteenth of its value away.
_LIMIT_FP8 = 0.15
_STORED = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


class WholeStep:
    """Steps of up to 64 rows."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        kv_dtype: str,
        quantize: Quantize,
        device: torch.device,
        max_context: int,
    ) -> None:
        self._device = device
        self._limit = _LIMIT_FP8 if quantize == "fp8" else _LIMIT
        self._generator = torch.Generator(device).manual_seed(13)
        self._context = min(max_context, _CHECKED_CONTEXT)
        config = _few_layers(config)
        self._config = config
        parameters = allocate(config, dtype, device)
        self._fill(parameters)
        ropes = {
            rope: rope_tables(
                replace(rope, kind="default", sections=()), config.rotary_dim, self._context + 64, device=device
            )
            for rope in {config.rope_of(index) for index in range(config.num_layers)}
            if rope is not None
        }
        self._weights = card_weights(config, parameters, ropes, quantize)
        self._pages = -(-self._context // PAGE_TOKENS)
        self._rows = 64
        self._stored = [_STORED[name] for name in kv_formats(config, kv_dtype, str(dtype).removeprefix("torch."))]
        size = (self._rows * self._pages, config.num_kv_heads, PAGE_TOKENS, config.head_dim)
        self._kv = [random_pages(size, stored, self._generator) for stored in self._stored]
        self._tokens = torch.randint(0, config.vocab_size, (self._rows,), generator=self._generator, device=device)
        lengths = [1 + (37 * row) % (self._context - 1) if row else self._context - 1 for row in range(self._rows)]
        self._positions = torch.tensor(lengths, device=device)
        tables = torch.arange(self._rows * self._pages, dtype=torch.int32, device=device)
        self._tables = tables.view(self._rows, self._pages)

    def calls(self, plan: Plan, rows: int) -> Sequence[Callable[[], object]]:
        """One call: a step of so many rows behind `_TIMED_CONTEXT` tokens."""
        step = FusedStep(self._weights, self._kv, plan)
        table = self._tables[:rows, : max(1, min(_TIMED_CONTEXT, self._context) // PAGE_TOKENS)].contiguous()
        positions = torch.full((rows,), table.shape[1] * PAGE_TOKENS - 1, device=self._device)
        slots = step.slots(positions, table)
        tokens = self._tokens[:rows]
        return [lambda: step.logits(tokens, positions, slots, table, together=False)]

    def problem(self, plan: Plan, classes: Sequence[int]) -> str:
        """What is wrong with a plan, in words: rows in batches of all sizes must have the bits that they have alone."""
        step = FusedStep(self._weights, self._kv, plan)
        alone = [self._logits(step, [row]) for row in range(max(classes))]
        for rows in classes:
            for count in {rows, rows - 3}:
                found = self._logits(step, list(range(count)))
                if not bool(found.isfinite().all()):
                    return f"logits of {count} rows are not finite"
                for row, own in enumerate(alone[:count]):
                    if not torch.equal(found[row], own[0]):
                        return f"a row's bits differ alone and among {count}"
        default = FusedStep(self._weights, self._kv, DEFAULT_PLAN)
        errors = []
        for row, own in enumerate(alone):
            expected = self._logits(default, [row])[0].double()
            errors.append(float((own[0].double() - expected).norm() / expected.norm()))
        error = self._judged(errors)
        if not error <= self._limit:
            return f"logits differ from the default's by {error:.2g}, {self._limit:g} is allowed"
        return ""

    def _judged(self, errors: Sequence[float]) -> float:
        """The largest; with experts the median, since the least rounding may turn a token that lies between two of them."""
        if any(math.isnan(error) for error in errors):
            return math.nan
        return max(errors) if self._config.experts is None else statistics.median(errors)

    def _logits(self, step: FusedStep, rows: Sequence[int]) -> torch.Tensor:
        own = torch.tensor(rows, device=self._device)
        table = self._tables[own].contiguous()
        positions = self._positions[own]
        return step.logits(self._tokens[own], positions, step.slots(positions, table), table, together=False).clone()

    def _fill(self, parameters: DecoderParameters) -> None:
        """Weights of standard deviation 1 / sqrt(in), so that states stay of one size; norms near one, small biases."""
        tensors = [parameters.embedding, parameters.head, parameters.norm]
        for layer in parameters.layers:
            tensors += [
                value for field in fields(layer) if isinstance(value := getattr(layer, field.name), torch.Tensor)
            ]
        for tensor in tensors:
            if tensor.dim() == 1 and tensor.dtype != torch.float32:
                tensor.normal_(0.0, 0.1, generator=self._generator)
            elif tensor.dtype == torch.float32:
                tensor.uniform_(0.8, 1.2, generator=self._generator)
            else:
                tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=self._generator)


def _few_layers(config: DecoderConfig) -> DecoderConfig:
    """With one layer of each of the first two kinds, or two of one kind; so too of those with experts and without."""
    kinds = list(dict.fromkeys(config.windows))[:_LAYERS]
    windows = tuple(kinds) if len(kinds) == _LAYERS else (kinds[0],) * min(_LAYERS, config.num_layers)
    experts = config.experts
    if experts is not None:
        sorts = sorted(set(experts.layers))
        experts = replace(experts, layers=tuple(sorts[index % len(sorts)] for index in range(len(windows))))
    return replace(config, num_layers=len(windows), windows=windows, unrotated=frozenset(), experts=experts)
