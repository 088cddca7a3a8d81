"""How kernels are launched on the card at hand: what was measured here before, is measured now, or defaults.

Triton and the tuner are imported where Triton's kernels compute, and nowhere else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from edgewise.core.errors import ConfigError, StorageError
from edgewise.core.files import FolderInUse, alone
from edgewise.core.log import get_logger
from edgewise.engine.config import EngineConfig
from edgewise.engine.numerics import Numerics, resolve
from edgewise.kernels.tuned import Tuned, load, save
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig, kv_token_bytes

log = get_logger(__name__)

_PAGES_SHARE = 4  # of the free memory, one part in so many is for the pages that attention is timed with
_MOST_TOKENS = 16 * 8192

TuneProgress = Callable[[float, str], None]
"""Called with the share done and what comes next."""


@dataclass(frozen=True, slots=True)
class Launches:
    """A plan as `kernels.triton.plan` documents it, None for defaults; and what of it decides bits, as part of a name."""

    document: Mapping[str, Any] | None = None
    label: str = ""


def launches_for(
    config: EngineConfig, network: NetworkConfig, numerics: Numerics, device: torch.device, progress: TuneProgress
) -> Launches:
    """What an engine launches by. Requests never wait for a measurement: it is made here, before the weights are read, where
    `kernel_tuning` is "load", and else not at all."""
    if numerics.kernels != "triton":
        return Launches()
    assert isinstance(network, DecoderConfig)
    defaults = _defaults(config, network, numerics, device)
    if config.kernel_tuning == "off" or config.kernel_cache_dir is None:
        return defaults
    found, reason = _recorded(config, network, numerics, device)
    if reason:
        log.warning("kernel_plan_unreadable", reason=reason, remedy="`edgewise kernels tune` writes it anew")
    if found is None and config.kernel_tuning == "load":
        found = _measured_or_not(config, network, numerics, device, progress)
    if found is None:
        log.info("kernels_untuned", card=torch.cuda.get_device_name(device), remedy="`edgewise kernels tune`")
        return defaults
    return _launches(found, defaults)


def tune_model(config: EngineConfig, network: NetworkConfig, progress: TuneProgress, *, again: bool = False) -> Tuned:
    """Measure for a model's shapes, and keep what was found; no weights are read.

    Args:
        again: Whether candidates are tried that processes died of.

    Raises:
        ConfigError: Triton's kernels do not compute this model here; the message says why.
        FolderInUse: Another process tunes.
        StorageError: The result cannot be kept.
        RuntimeError: A candidate broke the device, the next call leaves it out; or there is too little memory.
    """
    numerics = resolve(
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        quantize=config.quantize,
        cuda=torch.cuda.is_available(),
        capability=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
        measured_kv=config.measured_kv,
        failed_weights=config.failed_weights,
        kernels=config.kernels,
        network=network,
    )
    if numerics.kernels != "triton":
        why = numerics.lacking or f"on '{numerics.device}' the kernels are {numerics.kernels}"
        raise ConfigError(f"{config.model.name}: only Triton's kernels are tuned, and {why}.", param="engine.kernels")
    assert isinstance(network, DecoderConfig)
    with _ends_by_exception():
        return _measured(config, network, numerics, torch.device(numerics.device), progress, again=again)


def _recorded(
    config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device
) -> tuple[Tuned | None, str]:
    from edgewise.kernels.triton.place import place_of
    from edgewise.models.decoder.cuda.tuning import shape_name

    return load(_folder(config), place_of(device), shape_name(_aim(config, network, numerics, device)))


@contextmanager
def _ends_by_exception() -> Iterator[None]:
    """SIGTERM raises within, so that an orderly stop is not taken for a death by what was just tried."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measured_or_not(
    config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device, progress: TuneProgress
) -> Tuned | None:
    """None, and a warning, where it cannot be measured: an engine starts all the same.

    Raises:
        RuntimeError: The device computes no more.
    """
    from edgewise.kernels.triton.tuning import FAILURES, device_lost

    try:
        return _measured(config, network, numerics, device, progress)
    except (*FAILURES, StorageError, FolderInUse) as error:
        if device_lost():
            raise
        reason = f"{type(error).__name__}: {error}"
    torch.cuda.empty_cache()  # here, where the error holds no tensors any more
    log.warning(
        "kernels_not_tuned", reason=reason, remedy="kernels are launched by defaults; see `edgewise kernels tune`"
    )
    return None


def _measured(
    config: EngineConfig,
    network: DecoderConfig,
    numerics: Numerics,
    device: torch.device,
    progress: TuneProgress,
    *,
    again: bool = False,
) -> Tuned:
    from edgewise.kernels.triton.place import place_of
    from edgewise.kernels.triton.tuning import Journal, graph_timer
    from edgewise.models.decoder.cuda.tuning import tune

    place, folder = place_of(device), _folder(config)
    path = folder / f"{place.key}-trying.log"
    with torch.inference_mode(), alone(folder, f"{place.key}-tuning.lock", "tuner of kernels"):
        if again:
            path.unlink(missing_ok=True)
        found = tune(
            _aim(config, network, numerics, device),
            device,
            place=place,
            timer=graph_timer,
            progress=progress,
            journal=Journal(path),
            cache_bytes=int(torch.cuda.get_device_properties(device).L2_cache_size),
        )
    torch.cuda.empty_cache()
    kept = save(folder, found)
    log.info("kernels_tuned", path=str(kept), seconds=found.seconds, refused=len(found.refused), figures=found.figures)
    return found


def _defaults(config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device) -> Launches:
    from edgewise.kernels.triton.plan import DEFAULT_PLAN, default_plan

    codes = {"int8": torch.int8, "int4": torch.uint8}.get(numerics.quantize)
    if codes is None or network.experts is not None:
        return Launches()
    plan = default_plan(codes, device, config.max_running)
    return Launches() if plan == DEFAULT_PLAN else Launches(plan.document(), plan.label)


def _launches(tuned: Tuned, defaults: Launches) -> Launches:
    from edgewise.kernels.triton.plan import Plan

    try:
        plan = Plan.of(tuned.plan)
    except ValueError as error:
        log.warning("kernel_plan_unreadable", reason=str(error), remedy="`edgewise kernels tune` writes it anew")
        return defaults
    if tuned.failed:
        remedy = 'answers may be wrong; engine.kernels = "reference" avoids these kernels'
        log.error("kernel_tuning_failed", site=tuned.failed, serving="defaults", remedy=remedy)
    log.info("kernel_plan", label=plan.label or "default bits", when=tuned.when, figures=tuned.figures)
    return Launches(tuned.plan, plan.label)


def _aim(config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device) -> Any:
    from edgewise.models.decoder.cuda.tuning import Aim

    formats = (numerics.kv_dtype,) * network.num_layers
    layer = kv_token_bytes(network, formats) // network.num_layers
    # Random numbers of keys, and then of values, are float32 three times over before they are rounded.
    layer += 3 * 4 * network.num_kv_heads * network.head_dim
    free, _ = torch.cuda.mem_get_info(device)
    return Aim(
        config=network,
        dtype=getattr(torch, numerics.dtype),
        kv_dtype=numerics.kv_dtype,
        quantize=numerics.quantize,
        max_rows=config.max_running,
        max_context=min(network.max_position, config.max_context or network.max_position),
        most_tokens=min(_MOST_TOKENS, free // _PAGES_SHARE // layer),
    )


def _folder(config: EngineConfig) -> Path:
    assert config.kernel_cache_dir is not None
    return Path(config.kernel_cache_dir)
