"""A process of its own that climbs an encoder's ladder; its order comes as a line of JSON on standard input.

It runs at the lowest priority and within a bound of memory, and whatever happens to it, the encoder goes on serving as it is.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, cast

from edgewise.core.errors import EdgewiseError, UnsupportedModel
from edgewise.models.encoders.ladder import Candidate, Ladder, Told
from edgewise.models.encoders.network import Judged, Network, Session
from edgewise.models.encoders.record import (
    FLOAT32,
    GATE,
    HEARING_ROLES,
    REMEDY,
    CandidateRecord,
    LadderRecord,
    Unjudged,
    read_ladder,
    write_unjudged,
    write_winner,
)
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import TIME_FORMAT
from edgewise.models.onnx_session import RUNTIME

NETWORKS: Final[Mapping[str, str]] = {
    "embeddings": "edgewise.models.encoders.text_network:text_network",
    "rerank": "edgewise.models.encoders.text_network:text_network",
    "speech-to-text": "edgewise.models.encoders.sound_network:whisper_network",
    "vision": "edgewise.models.vision.load_labels:labels_network",
}
"""By role: "module:function" that takes `ModelFiles`, the samples, the gate and the threads, and returns a `network.Network`."""
CARD_BYTES: Final = 2 << 30
"""Of a card's memory, that a candidate may take."""
_NICEST: Final = 19
_EXPORTED: Final = HEARING_ROLES
"""Roles whose float32 graph an engine does not make itself."""
_UNDERSTOOD: Final = 0.8
"""Of the words that a voice reads aloud float32 must write so many: what it does not understand says nothing about words."""

Read = Callable[[ModelFiles, "Path | None", float, int], Network]
"""As in `NETWORKS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Attributes:
    files: The encoder.
    role: Of the model, which says how its network is read (`NETWORKS`).
    samples: Real inputs for calibration and gate: a file or a folder, as the role has it; None where they are among the
        model's own files, or where voices make them.
    voices: Models that speak. Where there are no samples, the first that the model understands reads them aloud.
    folder: Where the place's record and the winner go.
    device: Name of the processor's family, for the record.
    threads: As the encoder will run.
    gate: Least cosine to float32.
    card: Whether the rungs of a card are tried too.
    memory_bytes: Address space that may be used beyond what is mapped at the start; None for no bound.
    dtype: Of the weights with which an engine computes the encoder in torch, which is a candidate too; "" where none does.
    """

    files: ModelFiles
    role: str
    samples: Path | None
    folder: Path
    device: str
    threads: int
    gate: float = GATE
    card: bool = False
    memory_bytes: int | None = None
    dtype: str = ""
    voices: tuple[ModelFiles, ...] = ()

    def to_json(self) -> str:
        names = ("role", "device", "threads", "gate", "card", "memory_bytes", "dtype")
        rest = {name: getattr(self, name) for name in names}
        samples = None if self.samples is None else str(self.samples)
        files = {"files": _written(self.files), "voices": [_written(voice) for voice in self.voices]}
        return json.dumps({**files, "samples": samples, "folder": str(self.folder), **rest})


def _written(files: ModelFiles) -> dict[str, Any]:
    paths = {name: str(path) for name, path in files.paths.items()}
    return {"name": files.name, "digest": files.digest, "format": files.format, "paths": paths}


def _read(raw: Mapping[str, Any]) -> ModelFiles:
    return ModelFiles(**{**raw, "paths": {name: Path(path) for name, path in raw["paths"].items()}})


def read_order(raw: Mapping[str, Any]) -> Order:
    """The order that `Order.to_json` wrote."""
    samples = None if raw["samples"] is None else Path(raw["samples"])
    files = {"files": _read(raw["files"]), "voices": tuple(_read(voice) for voice in raw["voices"])}
    return Order(**{**raw, **files, "samples": samples, "folder": Path(raw["folder"])})


def network_of(order: Order) -> Network:
    """The network to climb with.

    Raises:
        UnsupportedModel, BadModelFile: It cannot be read, the samples are too few, or no voice can judge.
    """
    place = NETWORKS.get(order.role)
    if place is None:
        raise UnsupportedModel(f"{order.files.name}: models for {order.role} have no ladder.")
    module, _, function = place.partition(":")
    read = cast("Read", getattr(importlib.import_module(module), function))
    if order.samples is None and order.voices:
        return _by_voice(order, read)
    return read(order.files, order.samples, order.gate, order.threads)


def _by_voice(order: Order, read: Read) -> Network:
    """Judged by the first voice that the model understands."""
    # Here: other encoders need no voice.
    from edgewise.models.speech.aloud import read_aloud

    why, final = [], True
    for voice in order.voices:
        with tempfile.TemporaryDirectory(prefix="edgewise-aloud-") as name:
            try:
                read_aloud(voice, Path(name), order.threads)
            except Exception as error:  # noqa: BLE001 - of a runtime or a disk: another voice may do, this one another day
                why.append(f"{voice.name}: {_reason(error)}")
                final = False
                continue
            network = read(order.files, Path(name), order.gate, order.threads)
        if not isinstance(network, Judged) or network.judge is None:
            raise UnsupportedModel(f"{order.files.name}: models for {order.role} are not judged by speech.")
        judge = network.judge = replace(network.judge, kind="voice", name=voice.name)
        if judge.right >= _UNDERSTOOD * judge.words:
            return network
        why.append(
            f"{voice.name}: of the {judge.words} words that it reads aloud the model writes {judge.right}, "
            f"{_UNDERSTOOD:.0%} are needed"
        )
    found = Unjudged(voices=tuple(voice.digest for voice in order.voices), why="; ".join(why), final=final)
    write_unjudged(order.folder, found)
    remedy = REMEDY.format(order.files.name)
    raise UnsupportedModel(f"{order.files.name}: no voice here can judge its encoder ({found.why}): {remedy}.")


def climb(order: Order, told: Told, *, unasked: bool = False) -> LadderRecord:
    """Build, measure, choose and keep; `told` hears of each stage and the share done.

    Args:
        unasked: Nobody asked for it: where recordings have judged meanwhile, theirs is kept and returned, not a voice's.

    Raises:
        UnsupportedModel, BadModelFile: The encoder cannot be read, or the samples are too few.
        StorageError: The disk refuses.
    """
    began = time.monotonic()
    if order.voices:
        told("reading aloud", 0.0)
    network = network_of(order)
    ladder = Ladder(network, _others(order))
    if order.card:
        best, candidates, place = _on_card(order, network, *ladder.candidates(told), told)
    else:
        best, candidates = ladder.climb(told)
        place = {"device": order.device}
    kept = is_kept(best, order.role)
    record = LadderRecord(
        model=order.files.name,
        digest=order.files.digest,
        runtime=RUNTIME,
        threads=order.threads,
        measured_at=datetime.now(timezone.utc).strftime(TIME_FORMAT),
        took_s=round(time.monotonic() - began, 2),
        gate=network.gate,
        inputs=len(network.judged),
        many=network.many,
        file=f"{best.name}.onnx" if kept else "",
        candidates=tuple(candidates),
        judge=network.judge if isinstance(network, Judged) else None,
        **place,
    )
    better = read_ladder(order.folder, order.files.digest) if unasked else None
    if better is not None and _by_recordings(better) and not _by_recordings(record):
        return better
    write_winner(order.folder, record, best.model if kept else None)
    return record


def _by_recordings(record: LadderRecord) -> bool:
    return record.judge is not None and record.judge.kind == "recordings"


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, EdgewiseError) else f"{type(error).__name__}: {error}"[:300]


def is_kept(best: Candidate, role: str) -> bool:
    """Whether a winner's graph goes to a file. Float32 is made of the weights at each load: a moment where it is written as a
    graph, long where it is exported. torch has no graph."""
    return bool(best.model) and (best.name != FLOAT32 or role in _EXPORTED)


def _others(order: Order) -> dict[str, Session]:
    """What computes the encoder in an engine of its model."""
    if not order.dtype or order.role not in HEARING_ROLES:
        return {}
    # Here: other encoders need no Whisper.
    from edgewise.models.encoders.sound_texts import torch_session

    name, session = torch_session(order.files, order.dtype, order.threads)
    return {name: session}


def _on_card(
    order: Order, network: Network, built: list[Candidate], absent: list[CandidateRecord], told: Told
) -> tuple[Candidate, list[CandidateRecord], dict[str, str]]:
    """The rungs of a card against the best of the CPU; and what of the record names the card."""
    # Here: it brings torch along.
    from edgewise.models.encoders.card import identity
    from edgewise.models.encoders.card_ladder import CardLadder, Reference

    reference = Reference(graph=network.build({}), judged=network.judged, gate=network.gate, many=network.many)
    ladder = CardLadder(reference, order.folder, threads=order.threads, rivals=built, memory_bytes=CARD_BYTES)
    best, records = ladder.climb(told)
    found = identity()
    return best, [*records, *absent], {"driver": found.driver, "device": found.card}


def _tell(stage: str, fraction: float) -> None:
    print(json.dumps({"stage": stage, "fraction": fraction}), flush=True)


def _end_with_parent() -> None:
    """The parent holds the other end of standard input and writes no more: the end of file is its own end."""
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    order = read_order(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    os.nice(_NICEST)
    if order.role in HEARING_ROLES:
        importlib.import_module(
            "torch"
        )  # the addresses of its libraries, gigabytes with CUDA, are no memory of the climb
    if order.memory_bytes is not None and not order.card:  # CUDA reserves addresses for all memory that there is
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        bound = mapped + order.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    try:
        climb(order, _tell, unasked=True)
    except MemoryError:
        print(json.dumps({"error": f"it needs more than the {order.memory_bytes} bytes that it may have"}), flush=True)
        return 1
    except Exception as error:  # noqa: BLE001 - outermost frame of a process whose standard error nobody reads
        print(json.dumps({"error": _reason(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
