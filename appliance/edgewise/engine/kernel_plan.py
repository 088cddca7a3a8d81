"""How kernels are launched on the card at hand: what was measured here before, is measured now, or defaults.

Triton and the tuner are imported where Triton's kernels compute, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgewise.core.errors import ConfigError
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
    if numerics.kernels != "triton" or config.kernel_tuning == "off" or config.kernel_cache_dir is None:
        return Launches()
    assert isinstance(network, DecoderConfig)
    found, reason = _recorded(config, network, numerics, device)
    if reason:
        log.warning("kernel_plan_unreadable", reason=reason, remedy="`edgewise kernels tune` writes it anew")
    if found is None and config.kernel_tuning == "load":
        found = _measured(config, network, numerics, device, progress)
    if found is None:
        log.info("kernels_untuned", card=torch.cuda.get_device_name(device), remedy="`edgewise kernels tune`")
        return Launches()
    return _launches(found)


def tune_model(config: EngineConfig, network: NetworkConfig, progress: TuneProgress) -> Tuned:
    """Measure for a model's shapes, and keep what was found; no weights are read.

    Raises:
        ConfigError: Triton's kernels do not compute this model here; the message says why.
        RuntimeError: A candidate broke the device; the next call leaves it out.
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
    return _measured(config, network, numerics, torch.device(numerics.device), progress)


def _recorded(
    config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device
) -> tuple[Tuned | None, str]:
    from edgewise.kernels.triton.place import place_of
    from edgewise.models.decoder.cuda.tuning import shape_name

    return load(_folder(config), place_of(device), shape_name(_aim(config, network, numerics, device)))


def _measured(
    config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device, progress: TuneProgress
) -> Tuned:
    from edgewise.kernels.triton.place import place_of
    from edgewise.kernels.triton.tuning import Journal, graph_timer
    from edgewise.models.decoder.cuda.tuning import tune

    place = place_of(device)
    with torch.inference_mode():
        found = tune(
            _aim(config, network, numerics, device),
            device,
            place=place,
            timer=graph_timer,
            progress=progress,
            journal=Journal(_folder(config) / f"{place.key}-trying.log"),
            cache_bytes=int(torch.cuda.get_device_properties(device).L2_cache_size),
        )
    torch.cuda.empty_cache()
    path = save(_folder(config), found)
    log.info("kernels_tuned", path=str(path), seconds=found.seconds, refused=len(found.refused), figures=found.figures)
    return found


def _launches(tuned: Tuned) -> Launches:
    from edgewise.kernels.triton.plan import Plan

    try:
        plan = Plan.of(tuned.plan)
    except ValueError as error:
        log.warning("kernel_plan_unreadable", reason=str(error), remedy="`edgewise kernels tune` writes it anew")
        return Launches()
    log.info("kernel_plan", label=plan.label or "default bits", when=tuned.when, figures=tuned.figures)
    return Launches(tuned.plan, plan.label)


def _aim(config: EngineConfig, network: DecoderConfig, numerics: Numerics, device: torch.device) -> Any:
    from edgewise.models.decoder.cuda.tuning import Aim

    formats = (numerics.kv_dtype,) * network.num_layers
    layer = kv_token_bytes(network, formats) // network.num_layers
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
