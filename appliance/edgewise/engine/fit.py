"""What fits in memory, before anything is loaded. The engine sizes itself by this, and `edgewise models fit` prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgewise.core.sizes import mib
from edgewise.engine.devices.shares import share_of
from edgewise.engine.ledger import SHRINK_MARK
from edgewise.engine.numerics import Numerics
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.support import card_weight_bytes, loop_bytes
from edgewise.models.decoder.kv_formats import NetworkConfig, kv_formats, kv_label
from edgewise.models.decoder.memory import encoder_bytes, kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.whisper.config import WhisperSizes

# An answer shorter than this is no use to anybody: a cache below it is refused.
MIN_CONTEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """Sizes in bytes; `encoder` is the part of the weights that sees or hears, `media` is room for what it made,
    `graphs` what the loop on a card keeps that decodes answers. Where several `devices` compute the model together, sizes are
    those of all of them on a CPU, whose memory they share, and of one of them on GPUs.

    `fits` is False with a `reason` when the model cannot be served within the budget.
    """

    available: int
    budget: int
    weights: int
    encoder: int
    workspace: int
    media: int
    adapters: int
    draft: int
    graphs: int
    kv_format: str
    kv_per_token: int
    kv: int
    num_pages: int
    page_tokens: int
    max_context: int
    model_context: int
    full_contexts: float
    numerics: Numerics
    fits: bool
    reason: str
    devices: int = 1

    @property
    def cache_too_small(self) -> bool:
        """Whether the cache holds too few tokens for any use."""
        return self.max_context < MIN_CONTEXT and self.full_contexts < 1

    def explain(self) -> list[str]:
        """The sum, line by line, for people."""
        lines = [
            f"available now     {mib(self.available):>14}",
            f"budget            {mib(self.budget):>14}   ({self.budget / max(1, self.available):.0%} of it)",
            f"weights           {mib(self.weights):>14}   ({self.numerics.dtype}, quantize {self.numerics.quantize}, "
            f"kernels {self.numerics.kernels}{self._of_encoder()})",
            *self._of_devices(),
            f"workspace         {mib(self.workspace):>14}   (activations and logits of the largest step)",
            *self._of_media(),
            *self._of_others(),
            f"KV cache          {mib(self.kv):>14}   ({self.kv_format}, {self.kv_per_token:,} bytes a token, "
            f"{self.num_pages:,} pages of {self.page_tokens} tokens)",
            f"context           {self.max_context:,} of the model's {self.model_context:,} tokens; "
            f"the cache holds {self.full_contexts:.1f} full contexts",
            *self.numerics.why,
        ]
        return [*lines, ("fits: " if self.fits else "does not fit: ") + self.reason]

    def _of_devices(self) -> list[str]:
        if self.devices == 1:
            return []
        whose = "of all together" if self.numerics.device == "cpu" else "of each"
        return [f"devices           {self.devices:>14}   (engine.tensor_parallel; the sizes here are those {whose})"]

    def _of_encoder(self) -> str:
        return f"; {mib(self.encoder)} of them see or hear" if self.encoder else ""

    def _of_others(self) -> list[str]:
        sizes = {
            "adapters": (self.adapters, "low-rank adapters in use"),
            "draft model": (self.draft, "weights and pages"),
            "graphs": (self.graphs, "the loop that decodes on the card"),
        }
        return [f"{name:17} {mib(size):>14}   ({what})" for name, (size, what) in sizes.items() if size]

    def _of_media(self) -> list[str]:
        return [f"media             {mib(self.media):>14}   (encoded pictures and sound)"] if self.media else []


def fit(
    config: NetworkConfig,
    numerics: Numerics,
    *,
    available: int,
    memory_fraction: float,
    kv_memory_bytes: int | None,
    max_context: int | None,
    max_running: int,
    max_step_tokens: int,
    page_tokens: int,
    memory_budget_bytes: int | None = None,
    tier_bytes: int = 0,
    encoder_cache_bytes: int = 0,
    adapter_bytes: int = 0,
    draft_bytes: int = 0,
    devices: int = 1,
) -> FitReport:
    """Divide the budget: weights, workspace and encoded media first, the rest below `SHRINK_MARK` to the KV cache.

    The budget is `memory_budget_bytes`, but no more than is available; without it, `memory_fraction` of what is available.
    The cache is never larger than `max_running` full contexts can use, and exactly `kv_memory_bytes` when that is given.
    Tiers that want `tier_bytes` of the same memory are left a quarter at most of what lies beyond one whole context.
    A model that takes media keeps `encoder_cache_bytes` for what it has encoded, and `adapter_bytes` are kept for adapters,
    `draft_bytes` for a draft model. `devices` compute the model together: those of a CPU share the budget, a GPU has its own.

    Raises:
        ConfigError: The model cannot be divided among so many devices.
    """
    config = share_of(config, devices)
    together = devices if numerics.device == "cpu" else 1
    budget = int(available * memory_fraction) if memory_budget_bytes is None else min(memory_budget_bytes, available)
    native = numerics.quantize if numerics.kernels == "native" else None
    weights, graphs = weight_bytes(config, numerics.dtype, native) * together, 0
    context = min(max_context or config.max_position, config.max_position)
    if numerics.kernels == "triton" and isinstance(config, DecoderConfig):
        weights, graphs = card_weight_bytes(config, numerics.quantize), loop_bytes(config, max_running, context)
    workspace = together * workspace_bytes(
        config, max_step_tokens, max_running, numerics.device, native=native, adapters=adapter_bytes > 0
    )
    per_token = kv_bytes_per_token(config, numerics.kv_dtype, numerics.dtype) * together
    media = encoder_cache_bytes if isinstance(config, MultimodalConfig | WhisperSizes) else 0
    fixed = weights + workspace + media + adapter_bytes + draft_bytes + graphs
    room = int(budget * SHRINK_MARK) - fixed
    left = room - min(tier_bytes, max(0, room - context * per_token) // 4)
    wanted = kv_memory_bytes if kv_memory_bytes is not None else min(left, max_running * context * per_token)
    pages = max(0, wanted) // (per_token * page_tokens)
    usable = min(context, pages * page_tokens)
    fits, reason = _verdict(fixed, wanted, room, usable, context)
    return FitReport(
        available=available,
        budget=budget,
        weights=weights,
        encoder=encoder_bytes(config, numerics.dtype),
        workspace=workspace,
        media=media,
        adapters=adapter_bytes,
        draft=draft_bytes,
        graphs=graphs,
        kv_format=kv_label(kv_formats(config, numerics.kv_dtype, numerics.dtype)),
        kv_per_token=per_token,
        kv=pages * page_tokens * per_token,
        num_pages=pages,
        page_tokens=page_tokens,
        max_context=usable,
        model_context=config.max_position,
        full_contexts=pages * page_tokens / context,
        numerics=numerics,
        fits=fits,
        reason=reason,
        devices=devices,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What memory budget (`EngineConfig.memory_budget_bytes`) is of use to a model, in bytes.

    Attributes:
        minimal: Room for weights, workspace and one whole context, or for as much of one as all the memory there is can hold;
            never for less than `MIN_CONTEXT`.
        full: More than this it cannot use.
        context: Largest prompt + answer in tokens that `minimal` holds.
    """

    minimal: int
    full: int
    context: int


def needs(
    report: FitReport, *, max_context: int | None, max_running: int, kv_memory_bytes: int | None, tier_bytes: int = 0
) -> Needs:
    """The range of useful budgets of a model, of which `report` is what `fit` says for all the memory there is.

    `tier_bytes` of the same memory are of use to its cache tiers.
    """
    fixed = report.weights + report.workspace + report.media + report.adapters + report.draft + report.graphs
    page = report.kv_per_token * report.page_tokens
    wanted = min(max_context or report.model_context, report.model_context)
    one = math.ceil(wanted / report.page_tokens) * page if kv_memory_bytes is None else kv_memory_bytes
    most = one * max_running if kv_memory_bytes is None else kv_memory_bytes
    minimal, context = _budget_for(fixed + one), min(wanted, one // page * report.page_tokens)
    if minimal > report.budget and kv_memory_bytes is None:
        least = _budget_for(fixed + math.ceil(min(wanted, MIN_CONTEXT) / report.page_tokens) * page)
        minimal, context = max(least, report.budget), min(wanted, max(report.max_context, MIN_CONTEXT))
    return Needs(minimal=minimal, full=max(minimal, _budget_for(fixed + most + tier_bytes)), context=context)


def _budget_for(size: int) -> int:
    """The smallest budget of which `size` bytes lie below `SHRINK_MARK`."""
    return math.ceil(size / SHRINK_MARK) + 1


def _verdict(fixed: int, kv: int, room: int, usable: int, context: int) -> tuple[bool, str]:
    if kv > 0 and usable < min(context, MIN_CONTEXT):
        remedy = "free memory, raise engine.memory_fraction or take a smaller model"
        return False, (
            f"the KV cache would hold {usable} tokens, at least {min(context, MIN_CONTEXT)} are needed; "
            f"{remedy if kv == room else 'raise engine.kv_memory_bytes'}"
        )
    if room < 0:
        return False, (
            f"weights and workspace need {mib(fixed)}, {mib(-room)} more than {SHRINK_MARK:.0%} of the budget; "
            "free memory, raise engine.memory_fraction or take a smaller model"
        )
    if kv > room:
        return False, f"a KV cache of {mib(kv)} is asked for, {mib(room)} are left; lower engine.kv_memory_bytes"
    if usable < context:
        return True, f"with a context of {usable:,} tokens instead of {context:,}"
    return True, "with its whole context"
