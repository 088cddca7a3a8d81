"""An encoder inside an engine: it takes the form that its ladder found quickest (`models.whisper.rungs`), and has it climbed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch

from edgewise.engine.config import EngineConfig
from edgewise.engine.ledger import Ledger
from edgewise.engine.numerics import cpu_family
from edgewise.models.multimodal.protocol import MediaEncoder
from edgewise.models.whisper.encoder import WhisperEncoder
from edgewise.models.whisper.rungs import Kept, RungEncoder

PURPOSE: Final = "encoder"
_HEARING: Final = "edgewise.models.encoders.hearing:climb_hearing"
"""By name, as those of `engine.encoders.build`: it judges words, and an engine knows none."""


def encoder_class(config: EngineConfig, device: torch.device) -> str:
    """What the numeric class says of an encoder whose form may change: its results are those of float32 within the gate."""
    return "/encoder-within-gate" if config.encoder_ladders is not None and device.type == "cpu" else ""


def with_ladder(
    encoder: MediaEncoder,
    config: EngineConfig,
    ledger: Ledger,
    *,
    device: torch.device,
    dtype: torch.dtype,
    threads: int,
) -> MediaEncoder:
    """The encoder as it is, unless it has a ladder on the CPU and the configuration says where its records are.

    A winner that is there at the load has its memory booked with the cache of rows (`EngineConfig.encoder_form_bytes`); one that
    comes later is booked when it comes, beside the one that it replaces, and tried again where there is no room.
    """
    if config.encoder_ladders is None or device.type != "cpu" or not isinstance(encoder, WhisperEncoder):
        return encoder
    kept = Kept(folder=Path(config.encoder_ladders), digest=config.model.digest, device=cpu_family(), threads=threads)
    reserved = config.encoder_form_bytes

    def book(size: int) -> None:
        beyond, before = max(0, size - reserved), ledger.report().booked.get(PURPOSE, 0)
        if beyond > before:
            ledger.book(PURPOSE, beyond - before)
        elif beyond < before:
            ledger.give_back(PURPOSE, before - beyond)

    climb = partial(_climb, config, str(dtype).removeprefix("torch."), threads) if config.encoder_climb else None
    return RungEncoder(encoder, dtype, kept, book, climb)


def _climb(config: EngineConfig, dtype: str, threads: int, book: Callable[[int], Callable[[], None]]) -> None:
    """Loaded when it is called: it brings ONNX Runtime along, which an engine with nothing to climb does not need."""
    module, _, function = _HEARING.partition(":")
    options = {**config.encoder_climb, "dtype": dtype}
    getattr(importlib.import_module(module), function)(config.model, threads, options, book)
