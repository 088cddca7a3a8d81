"""Encoders' ladders: on the CPU 8 bits beside float32 for texts, pictures and sound; on a CUDA card its rungs beside those.

The half of the CPU measures the catalog's models; the half of the card Whisper base's encoder with random weights. Where there is
no card, the record of one stands for it, if it is of this code (`tests.accept.card_record`); else the line says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.models.encoders.build import climb as climb_cpu
from edgewise.models.encoders.card_ladder import Reference
from edgewise.models.encoders.rung import place_of
from edgewise.models.encoders.sound_network import WhisperModule
from edgewise.models.whisper.config import WhisperConfig
from tests.accept.card_record import recorded
from tests.accept.cards import GATE, climb, cuda_rung, details, faults, need_card, shown
from tests.accept.line import Line, NotRun, Verdict, main, progress

MODELS = ("efficientnet-lite0", "minilm", "whisper-tiny.en")
BASE = WhisperConfig(
    vocab_size=51865,
    width=512,
    mels=80,
    encoder_layers=6,
    encoder_heads=8,
    encoder_inner=2048,
    decoder_layers=6,
    decoder_heads=8,
    decoder_inner=2048,
    frames=1500,
    max_text=448,
)


def cpu(models: Sequence[str]) -> tuple[list[str], list[str], dict[str, Any]]:
    """What is wrong, what was measured, and all of it."""
    # Here: a machine with a card that measures only that half has none of what these need.
    from edgewise.models.store import Store
    from edgewise.serving.encoders import ladder_options
    from tests.e2e.service import PULL_TIMEOUT_S, edgewise, starter_home
    from tests.recordings import librivox

    wrong, figures, found = [], [], {}
    try:
        recordings = librivox()[0].path.parent
    except pytest.skip.Exception as reason:
        raise NotRun(str(reason)) from reason
    home = starter_home()
    store = Store(home / "models")
    for name in models:
        progress(name)
        edgewise(home, "models", "pull", name, timeout_s=PULL_TIMEOUT_S)
        manifest = store.manifest(name)
        with tempfile.TemporaryDirectory() as folder:
            options = {**ladder_options(store, manifest, recordings), "store": folder}
            order = place_of(1, options).order(store.resolve(name, manifest.info.role), manifest.info.role)
            record = climb_cpu(order, lambda stage, share: progress(f"{share:4.0%} {stage}"))
        found[name] = asdict(record)
        chosen = record.chosen
        plain = next(it for it in record.candidates if it.name == "fp32")
        figures.append(
            f"{name} fp32 {plain.ms_one:.2f} ms, {chosen.name} {chosen.ms_one:.2f} ms ({chosen.cosine_min:.4f})"
        )
        if chosen.cosine_min is None or chosen.cosine_min < record.gate:
            wrong.append(f"{name}: {chosen.name} does not pass the gate")
        if not any(it.name.startswith("int8-") and it.cosine_min is not None for it in record.candidates):
            wrong.append(f"{name}: no 8-bit candidate was measured")
        wrong += [
            f"{name}: {it.name} lost without a reason" for it in record.candidates if not it.chosen and not it.why
        ]
    return wrong, figures, found


def sound_reference() -> Reference:
    """Whisper base's encoder with random weights; numbers of the range of spectrograms."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    judged = [rng.uniform(-1, 1.5, (1, BASE.mels, 2 * BASE.frames)).astype(np.float32) for _ in range(8)]
    return Reference(module=WhisperModule(BASE).eval().requires_grad_(False), judged=judged, gate=GATE)


def card() -> tuple[list[str], list[str], dict[str, Any]]:
    """As `cpu`; shared memory is tried too, with pinned memory that the card reads over the bus."""
    need_card()
    reference = sound_reference()
    with tempfile.TemporaryDirectory() as folder:
        best, records = climb(reference, Path(folder), shared=False)
        at_once, shared = climb(reference, Path(folder), shared=True)
    wrong = faults(records, reference.gate) + copies_wrong(best, at_once)
    figures = [shown(records, reference.many), cuda_rung(records)]
    return wrong, figures, {**details(records), "shared": [asdict(it) for it in shared]}


def kept() -> tuple[list[str], list[str], dict[str, Any]]:
    """As `card`, from the record."""
    record = recorded("senses_3")
    return record["faults"], [f"recorded on {record['on']}: {record['figure']}"], record


def copies_wrong(apart: Any, shared: Any) -> list[str]:
    """Whether memory of its own is copied to, and shared memory is not."""
    wrong = []
    for name, candidate, wanted in (("memory of its own", apart, True), ("shared memory", shared, False)):
        copies = getattr(candidate.session, "copies", None)
        if copies is None:
            wrong.append(f"with {name} the rung {candidate.name} counts no copies")
        elif bool(copies.to_card or copies.from_card) is not wanted:
            wrong.append(f"with {name}: {copies.to_card} bytes to the card and {copies.from_card} back")
    return wrong


def measure(count: int) -> Verdict:
    """The first `count` of the catalog's models, and the card."""
    ran = True
    try:
        wrong_there, figures_there, found_there = card() if torch.cuda.is_available() else kept()
    except NotRun as reason:
        wrong_there, figures_there, found_there, ran = [], [f"card not run: {reason}"], {}, False
    wrong, figures, found = cpu(MODELS[:count])
    held = not wrong and not wrong_there
    return Verdict(
        figure="; ".join([*figures, *figures_there]),
        passed=held and ran,
        correct=held,
        details={"faults": [*wrong, *wrong_there], "cpu": found, "card": found_there},
    )


LINE = Line(
    number=3,
    title="Encoders' ladders: 8 bits and float32 timed and gated on the CPU; on a CUDA card its rungs win or lose by measurement",
    bar="every candidate with its time or reason, the winner within the gate; no node of a card's rung on the CPU, "
    "TensorRT's missing library named",
    count=len(MODELS),
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_3")
