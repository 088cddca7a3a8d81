"""What is kept of an encoder's ladder: every candidate with its time, its error and why it lost, beside the winner's file.

`<store>/encoders/<digest>/<place>/`, where the place names runtime, device and threads: a new runtime or device measures anew,
and what the old one left is dropped.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import BadModelFile, StorageError
from edgewise.core.files import atomic_write, make_folder
from edgewise.core.log import get_logger
from edgewise.models.small_files import read_object

log = get_logger(__name__)

SCHEMA: Final = 2
RECORD: Final = "ladder.json"
UNJUDGED: Final = "unjudged.json"
"""Why no voice of the device could judge; it is not tried again with the same ones, unless they may do better."""
LADDER_ROLES: Final = ("embeddings", "rerank", "speech-to-text", "vision")
"""Of encoders that have a ladder. Texts are calibrated and judged with prose of our documentation, labels with photos among the
model's own files, hearing with recordings that are given, or with what a voice of the device reads aloud."""
HEARING_ROLES: Final = frozenset({"speech-to-text"})
"""Of encoders that hear: an engine computes them itself, in torch, and their words are judged."""
REMEDY: Final = (
    "install a voice that reads aloud (`edgewise models pull kokoro`), or measure with recordings of speech: "
    "`edgewise models encoders {} --measure --samples FOLDER`"
)
"""Where nothing judges an encoder that hears; with the model's name."""
CARD_ROLES: Final = frozenset({"vision"})
"""Of models whose ladders have rungs on a card: small encoders of texts are quicker on the CPU than the way to the card is."""
_FOLDER: Final = "encoders"
_CARD: Final = "cuda-"
FLOAT32: Final = "fp32"
"""The candidate that the others are held to on the CPU."""
GATE: Final = 0.999
"""Least cosine between a candidate's output for any input and that of float32, where the model's manifest names no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """Attributes:
    name: "fp32", "int8-static", "int8-blocks" or "int8-mixed".
    forms: How many groups of products have which form (`graph.Form`); the others are float32.
    cosine_min, cosine_mean: To the outputs of float32, over the inputs of the gate; None where it was not built.
    ms_one, ms_many: Milliseconds for one input, and for `LadderRecord.many` of them together.
    bytes: Of its file.
    nodes: Of its graph on a card, how many each provider computes.
    passed: Whether it meets the gate.
    chosen: Whether it is the one in use.
    why: Why it lost; "" for the winner.
    """

    name: str
    forms: Mapping[str, int]
    cosine_min: float | None
    cosine_mean: float | None
    ms_one: float | None
    ms_many: float | None
    bytes: int
    passed: bool
    chosen: bool
    why: str
    nodes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Which speech judged an encoder that hears: no more is known of the winner than that it changed nothing of this.

    Attributes:
        kind: "recordings" that were given, or a "voice" of the device that read sentences of ours.
        name: Of the recordings' folder, or of the voice.
        inputs: Recordings or readings whose words were compared; the calibration heard others.
        words: That are known to be said in these; 0 where nobody says what is.
        right: Of those, how many float32 wrote; a candidate that passed wrote the same text.
    """

    kind: str
    name: str
    inputs: int
    words: int = 0
    right: int = 0

    def __str__(self) -> str:
        who = (
            f"{self.inputs} readings by the voice {self.name}"
            if self.kind == "voice"
            else f"{self.inputs} recordings of {self.name}"
        )
        return f"{who}, of whose {self.words} words float32 writes {self.right}" if self.words else who


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRecord:
    """Attributes:
    model, digest: Whose it is.
    runtime, device, threads: Where it was measured.
    driver: Of the card; "" on the CPU.
    measured_at: UTC, ISO 8601.
    took_s: Seconds from reading the weights to the choice.
    gate: What `cosine_min` must meet.
    inputs: How many the gate read; the calibration read others.
    many: Inputs of the larger timing.
    file: The winner's, beside the record; "" where float32 won, whose graph is made of the weights at each load.
    judge: Which speech judged; None for encoders that do not hear, and in records of versions that did not say.
    """

    model: str
    digest: str
    runtime: str
    device: str
    threads: int
    measured_at: str
    took_s: float
    gate: float
    inputs: int
    many: int
    file: str
    candidates: tuple[CandidateRecord, ...]
    driver: str = ""
    judge: Judge | None = None

    @property
    def needs_card(self) -> bool:
        """Whether the winner runs on a card."""
        return bool(self.chosen.nodes)

    @property
    def chosen(self) -> CandidateRecord:
        return next(it for it in self.candidates if it.chosen)


def form_bytes(record: LadderRecord) -> int:
    """Memory that a record's winner takes once it is loaded: its file, and as much again where the runtime packs it anew."""
    return 2 * record.chosen.bytes if record.file else 0


def place_name(runtime: str, device: str, threads: int) -> str:
    """The folder's name of a place on the CPU."""
    return f"{runtime}-{device}-t{threads}"


def card_place_name(runtime: str, device: str, driver: str) -> str:
    """The folder's name of a place on a card."""
    return _CARD + re.sub(r"[^A-Za-z0-9.]+", "_", f"{runtime}-{device}-driver-{driver}")


def ladder_folder(store_root: Path, digest: str) -> Path:
    """Where the places of the model with this digest are."""
    return store_root / _FOLDER / digest.replace(":", "-")


def drop_ladders(store_root: Path, kept: Iterable[str]) -> int:
    """Delete the ladders of all models but those with these digests.

    Returns:
        Bytes that are free now.
    """
    names = {ladder_folder(store_root, digest).name for digest in kept}
    freed = 0
    for folder in (store_root / _FOLDER).glob("*"):
        if folder.name not in names:
            freed += sum(it.stat().st_size for it in folder.rglob("*") if it.is_file())
            shutil.rmtree(folder)
    return freed


def write_winner(folder: Path, record: LadderRecord, model: bytes | None) -> None:
    """Keep a record with its winner's graph, and drop what other places of the same model left.

    Raises:
        StorageError: The disk refuses.
    """
    make_folder(folder.parent.parent)
    make_folder(folder.parent)
    make_folder(folder)
    if model is not None:
        atomic_write(folder / record.file, model)
    atomic_write(folder / RECORD, json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1) + "\n")
    (folder / UNJUDGED).unlink(missing_ok=True)
    for other in folder.parent.iterdir():
        if other != folder and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """That no ladder was climbed in a place.

    Attributes:
        voices: Digests of those that were tried.
        why: None of them could judge.
        final: Whether the same voices would fail again: what one of them lacks, say a program, may come.
    """

    voices: tuple[str, ...]
    why: str
    final: bool


def write_unjudged(folder: Path, found: Unjudged) -> None:
    """Keep it in a place's folder. Raises `StorageError`: the disk refuses."""
    for one in (folder.parent.parent, folder.parent, folder):
        make_folder(one)
    atomic_write(folder / UNJUDGED, json.dumps(asdict(found)) + "\n")


def read_unjudged(folder: Path) -> Unjudged | None:
    """None where there is none, or none that can be read: then it is tried again."""
    try:
        raw = read_object(folder / UNJUDGED, UNJUDGED, most=1 << 16)
        return Unjudged(voices=tuple(map(str, raw["voices"])), why=str(raw["why"]), final=raw["final"] is True)
    except (BadModelFile, StorageError, KeyError, TypeError):
        return None


def read_ladder(folder: Path, digest: str) -> LadderRecord | None:
    """The record of one place; None if there is none. A damaged one, or one whose file is gone, is reported and ignored."""
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        record = _parse(read_object(path, path.name, most=1 << 20), digest)
        if record.file and not (folder / record.file).is_file():
            raise BadModelFile(f"its file {record.file} is gone")
    except (BadModelFile, StorageError) as error:
        log.warning("encoder_record_ignored", file=str(path), reason=error.message, remedy="it is measured again")
        return None
    return record


def read_ladders(store_root: Path, digest: str) -> list[LadderRecord]:
    """Those of all places of a model."""
    places: Iterable[Path] = ladder_folder(store_root, digest).glob(f"*/{RECORD}")
    found = (read_ladder(path.parent, digest) for path in sorted(places))
    return [record for record in found if record is not None]


def _parse(raw: Mapping[str, Any], digest: str) -> LadderRecord:
    try:
        if raw["schema"] != SCHEMA or raw["digest"] != digest or "/" in raw["file"]:
            raise BadModelFile(f"not of schema {SCHEMA}, or of another model")
        fields = {name: raw[name] for name in LadderRecord.__slots__ if name not in ("candidates", "judge")}
        candidates = tuple(CandidateRecord(**it) for it in raw["candidates"])
        judge = raw.get("judge")
        record = LadderRecord(**fields, candidates=candidates, judge=None if judge is None else Judge(**judge))
        if [it.chosen for it in candidates].count(True) != 1:
            raise BadModelFile("not exactly one candidate is chosen")
    except (KeyError, TypeError) as error:
        raise BadModelFile(f"a field is missing or unknown: {error}") from error
    return record
