"""Builds an encoder's engine in its own process: book what it takes, then load it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Final

from edgewise.core.errors import OutOfMemory, UnsupportedModel
from edgewise.core.sizes import mib
from edgewise.engine.core import ProgressSink
from edgewise.engine.encoders.climbs import start_climb
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.encoders.engine import EncoderCore
from edgewise.engine.encoders.request import EncoderInfo
from edgewise.engine.ledger import REFUSE_MARK, Ledger, available_memory
from edgewise.engine.notices import Notices

LOADERS: Final[Mapping[str, str]] = {
    "embeddings": "edgewise.models.encoders.load:load_text_encoder",
    "rerank": "edgewise.models.encoders.load:load_cross_encoder",
    "vision": "edgewise.models.vision.load_labels:load_labeller",
    "ocr": "edgewise.models.vision.load_ocr:load_reader",
    "text-to-speech": "edgewise.models.speech.load:load_speaker",
    "vad": "edgewise.models.vad.silero:load_vad",
}
"""By role: "module:function" that takes `ModelFiles`, a number of threads and `EncoderConfig.options`, and returns an
`engine.encoders.engine.Encoder` and its numeric class. By name, so that a process loads only the libraries of its own model."""


def build(config: EncoderConfig, progress: ProgressSink) -> EncoderCore:
    """Load the model of `config` and return an engine that can answer.

    Raises:
        OutOfMemory: It does not fit; nothing has been loaded then.
        BadModelFile, UnsupportedModel: As their names say.
    """
    began = time.monotonic()
    progress("fit", 0.0)
    ledger = _book(config)
    progress("weights", 0.0)
    place = LOADERS.get(config.role)
    if place is None:
        raise UnsupportedModel(f"{config.model.name}: no code here reads models for {config.role}.")
    module, _, function = place.partition(":")
    threads = config.threads or len(os.sched_getaffinity(0))
    encoder, numeric_class = getattr(importlib.import_module(module), function)(config.model, threads, **config.options)
    info = EncoderInfo(
        model=config.model.name,
        digest=config.model.digest,
        role=config.role,
        numeric_class=numeric_class,
        device=config.device,
        pid=os.getpid(),
        load_s=time.monotonic() - began,
    )
    notices = Notices()
    start_climb(encoder, ledger, notices)
    return EncoderCore(
        info, encoder, ledger, max_batch=config.max_running, max_waiting=config.max_waiting, notices=notices
    )


def _book(config: EncoderConfig) -> Ledger:
    available = available_memory()
    asked = config.memory_budget_bytes
    budget = int(available * config.memory_fraction) if asked is None else min(asked, available)
    if config.needs_bytes > budget * REFUSE_MARK:
        raise OutOfMemory(
            f"{config.model.name} does not fit: it needs {mib(config.needs_bytes)}, and {REFUSE_MARK:.0%} of the budget of "
            f"{mib(budget)} may be booked."
        )
    ledger = Ledger(budget, available_memory)
    ledger.book("model", config.needs_bytes)
    return ledger
