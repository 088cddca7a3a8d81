"""An encoder inside an engine that takes the form which its ladder found quickest (`models.whisper.rungs`)."""

from __future__ import annotations

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

    return RungEncoder(encoder, dtype, kept, book)
