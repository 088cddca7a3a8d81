"""What serves as the encoder of a model that hears, and what judged it, told without loading anything."""

from __future__ import annotations

import os
from dataclasses import dataclass

from edgewise.core.settings import Settings
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.record import REMEDY, UNJUDGED, ladder_folder, read_ladders, read_unjudged
from edgewise.models.encoders.voices import voices_of
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store
from edgewise.serving.encoders import is_here


@dataclass(frozen=True, slots=True)
class HearingLadder:
    """Attributes:
    detail: What computes the encoder, and why.
    remedy: What finds its quickest form, where nothing here does; "" where it is found, or will be.
    """

    detail: str
    remedy: str = ""


def hearing_ladder(settings: Settings, store: Store, manifest: Manifest, *, card: bool) -> HearingLadder:
    """Of an installed model that hears; `card`: whether engines compute on one."""
    if card:
        return HearingLadder("torch computes on the card")
    threads = settings.engine.threads or len(os.sched_getaffinity(0))
    for record in read_ladders(store.root, manifest.digest):
        if is_here(record, threads, card=False):
            judge = record.judge or "recordings"
            return HearingLadder(f"{record.chosen.name} is the quickest on this processor, judged by {judge}")
    remedy = REMEDY.format(manifest.name)
    voices = voices_of(store)
    if not voices:
        return HearingLadder(
            "torch computes: no voice is installed that could read aloud what judges quicker forms", remedy
        )
    if settings.engine.encoder_tuning == "off":
        remedy = f"set it to load, or run `edgewise models encoders {manifest.name} --measure`"
        return HearingLadder("torch computes: engine.encoder_tuning is off", remedy)
    digests = tuple(voice.digest for voice in voices)
    for note in ladder_folder(store.root, manifest.digest).glob(f"*-{cpu_family()}-t{threads}/{UNJUDGED}"):
        found = read_unjudged(note.parent)
        if found is not None and found.voices == digests:
            return HearingLadder(f"torch computes: no voice here can judge quicker forms ({found.why})", remedy)
    return HearingLadder(
        f"torch computes until the first load has measured quicker forms, judged by the voice {voices[0].name}"
    )
