"""From an encoder's name in the store to something that can be asked, and how its engine is built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import distributions
from importlib.resources import files as package_files
from pathlib import Path
from typing import Final, cast

from edgewise.core.errors import BadModelFile, EngineUnavailable
from edgewise.core.settings import Settings
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.encoders.request import EncoderEngine
from edgewise.engine.fit import Needs
from edgewise.engine.ledger import REFUSE_MARK
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import cpu_family, resolve
from edgewise.models.encoders.memory import climb_bytes
from edgewise.models.encoders.record import CARD_ROLES, LADDER_ROLES, LadderRecord, read_ladders
from edgewise.models.encoders.text import TextFace, load_face
from edgewise.models.manifest import Manifest, Role
from edgewise.models.store import Store
from edgewise.pipeline.model import ServedEncoder
from edgewise.serving.served import with_remedy

ENCODER_ROLES: Final[tuple[Role, ...]] = ("embeddings", "ocr", "rerank", "text-to-speech", "vad", "vision")
"""Of models that answer at once."""
_TEXT_ROLES: Final[tuple[Role, ...]] = ("embeddings", "rerank")
"""Of those, the ones that read text."""
_GUESS: Final = 3
_ROOM: Final = 128 << 20
"""Where nobody measured a model's memory: so many times its files, and this much more."""
_TOGETHER: Final = 16
"""Texts that are computed together, unless lengths set them apart."""
_ON_CARD: Final = 8
"""Pictures that are labelled together on a card, which takes hardly longer for all of them; the CPU takes them one by one."""
_SHARE: Final = 2
"""The pool gives a model half of what it can use beyond its needs: so much must be named for a climb to find room."""
_PICTURES: Final = 16
"""That wait at most: each is held decoded, in up to 12 MB. Their sizes differ, so each is computed alone, as sentences are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEncoder:
    """What was read of an encoder's files; `needs` says with how much memory it can be loaded.

    `face` is that of an encoder that reads texts.
    """

    config: EncoderConfig
    needs: Needs
    created: int
    face: TextFace | None = None

    def served(self, engine: EncoderEngine, aliases: tuple[str, ...]) -> ServedEncoder:
        return ServedEncoder(
            name=self.config.model.name,
            role=cast("Role", self.config.role),
            aliases=aliases,
            engine=engine,
            digest=self.config.model.digest,
            created=self.created,
            face=self.face,
        )

    def close(self) -> None:
        """Nothing of it is open."""


def read_encoder(settings: Settings, store: Store, name: str, machine: Machine) -> ReadEncoder:
    """Read an encoder's small files. Call it in a thread.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel: Why it cannot be served.
        EngineUnavailable: It was measured best on a card, which is gone.
    """
    manifest = store.manifest(name)
    model = store.resolve(name, manifest.info.role)
    measured = manifest.info.memory_bytes
    texts, pictures = manifest.info.role in _TEXT_ROLES, manifest.info.role in ("ocr", "vision")
    try:
        face = load_face(model, manifest.info.role) if texts else None
    except BadModelFile as error:
        raise with_remedy(error, name) from error
    size = manifest.size if face is None else max(manifest.size, face.shape.weight_bytes)  # halves become float32
    needs = int((_GUESS * size + _ROOM if measured is None else measured) / REFUSE_MARK) + 1
    engine = settings.engine
    threads = engine.threads or len(os.sched_getaffinity(0))
    config = EncoderConfig(
        model=model,
        role=manifest.info.role,
        needs_bytes=int(needs * REFUSE_MARK),
        memory_fraction=engine.memory_fraction,
        max_running=_TOGETHER if texts else 1,
        max_waiting=min(engine.max_waiting, _PICTURES) if pictures else engine.max_waiting,
        threads=threads,
    )
    climb = 0
    if manifest.info.role in LADDER_ROLES:
        records = read_ladders(store.root, manifest.digest)
        card = machine.cuda and manifest.info.role in CARD_ROLES
        if not card and engine.device != "cpu":
            _demand_card(manifest, records)
        if engine.encoder_tuning == "load" and not any(is_here(record, threads, card=card) for record in records):
            climb = climb_bytes(manifest.info.role, 0 if face is None else face.shape.weight_bytes)
        options = {"climb_bytes": str(climb), "card": "yes" if card else "no"}
        together = _ON_CARD if card else config.max_running
        config = replace(config, max_running=together, options={**ladder_options(store, manifest), **options})
    return ReadEncoder(
        config=config,
        needs=Needs(minimal=needs, full=needs + _SHARE * int(climb / REFUSE_MARK + 1), context=0),
        created=manifest.installed_seconds,
        face=face,
    )


def _demand_card(manifest: Manifest, records: Sequence[LadderRecord]) -> None:
    """Nothing moves from a card to the CPU unseen."""
    for record in records:
        if record.needs_card:
            raise EngineUnavailable(
                f"{manifest.name}: {record.chosen.name} was measured best on {record.device}, and no card can be used now. "
                "`edgewise doctor` looks for why. To go on without one, set engine.device to cpu, or choose anew with "
                f"`edgewise models encoders {manifest.name} --measure`."
            )


def is_here(record: LadderRecord, threads: int, *, card: bool) -> bool:
    """Whether a ladder was climbed here, as far as can be told without loading its libraries; else room for a climb is kept."""
    there = bool(record.driver) if card else record.device == cpu_family()
    return there and record.threads == threads and record.runtime in _runtimes()


@cache
def _runtimes() -> frozenset[str]:
    found = {it.version for it in distributions() if it.name in ("onnxruntime", "onnxruntime-gpu")}
    return frozenset(f"onnxruntime-{it}" for it in found)


def encoder_dtype(settings: Settings) -> str:
    """In which an engine on the CPU computes the encoder of its own model."""
    numerics = resolve(device="cpu", dtype=settings.dtype, kv_dtype="float32", quantize="none", cuda=False)
    return numerics.dtype


def ladder_options(store: Store, manifest: Manifest, samples: Path | None = None) -> Mapping[str, str]:
    """What `models.encoders.rung.place_of` reads, for models that have a ladder; `samples`: of recordings, for one that hears."""
    if manifest.info.role not in LADDER_ROLES:
        return {}
    if manifest.info.role in _TEXT_ROLES:
        samples = Path(str(package_files("edgewise.pipeline") / "gate_text.txt"))
    given = {} if samples is None else {"samples": str(samples)}
    gate = {} if manifest.info.gate is None else {"gate": str(manifest.info.gate)}
    return {
        "store": str(store.root),
        "device": cpu_family(),
        **given,
        **gate,
    }
