"""What serves of an encoder's ladder: float32 at once, the measured winner where one is kept or as soon as it is found.

Where no record of this runtime and device is kept, a process of its own climbs the ladder in the background (`build`); its winner
then takes the place of float32 between two batches.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import psutil

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.python import module_command
from edgewise.core.sizes import mib
from edgewise.models.encoders.build import Order
from edgewise.models.encoders.record import FLOAT32, GATE, LadderRecord, ladder_folder, place_name, read_ladder
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME

log = get_logger(__name__)

_BUILD: Final = "edgewise.models.encoders.build"
_SPARE: Final = 512 << 20
"""What stays free beside a climb."""

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Rung(Generic[S_co]):
    """What serves: replaced as a whole, so a batch is computed by one. `session` is that of the encoder's kind."""

    precision: str
    session: S_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an encoder runs and its ladders are kept.

    Attributes:
        store: The model store's folder.
        samples: Real inputs for calibration and gate.
        device: Name of the processor's family.
        threads: As the encoder runs.
        gate: Least cosine to float32.
        climb: Climb the ladder where no record of this place is kept.
    """

    store: Path
    samples: Path
    device: str
    threads: int
    gate: float = GATE
    climb: bool = True

    @property
    def numeric_class(self) -> str:
        """That of float32, which every rung is held to."""
        return f"{RUNTIME}/cpu-{self.device}-t{self.threads}/gate-of-float32"

    def order(self, files: ModelFiles, role: str, memory_bytes: int | None = None) -> Order:
        """To climb the ladder of a model here."""
        return Order(
            files=files,
            role=role,
            samples=self.samples,
            folder=ladder_folder(self.store, files.digest) / place_name(RUNTIME, self.device, self.threads),
            device=self.device,
            threads=self.threads,
            gate=self.gate,
            memory_bytes=memory_bytes,
        )


def place_of(threads: int, options: Mapping[str, str]) -> Place:
    """From the options of `engine.encoders.config.EncoderConfig`."""
    return Place(
        store=Path(options["store"]),
        samples=Path(options["samples"]),
        device=options["device"],
        threads=threads,
        gate=float(options.get("gate", GATE)),
        climb=options.get("climb", "yes") == "yes",
    )


class Best(Generic[S]):
    """The rung of one encoder.

    Args:
        order: How its ladder is climbed.
        plain: Opens the float32 graph.
        opened: Opens a winner's file.

    Attributes:
        rung: What serves; another thread may replace it at any time.
    """

    def __init__(self, order: Order, plain: Callable[[], S], opened: Callable[[Path], S]) -> None:
        self._order = order
        self._opened = opened
        self.record = read_ladder(order.folder, order.files.digest)
        self.rung = self._kept(self.record) or Rung(FLOAT32, plain())

    def climb(self, needed: int) -> None:
        """Climb in the background, unless this place was measured already; `needed` bytes of memory at most."""
        if self.record is None and _has_room(self._order.files.name, needed):
            _Climb(self._order, self._take).start()

    def _kept(self, record: LadderRecord | None) -> Rung[S] | None:
        """The winner's file, if it can be used."""
        if record is None or not record.file:
            return None
        path = self._order.folder / record.file
        try:
            return Rung(record.chosen.name, self._opened(path))
        except Exception as error:  # noqa: BLE001 - its errors have no common class but this; float32 serves instead
            log.warning("encoder_file_ignored", file=str(path), reason=str(error)[:300])
            return None

    def _take(self, record: LadderRecord) -> None:
        chosen = self._kept(record)
        if chosen is not None:
            self.rung = chosen
        self.record = record
        log.info("encoder_rung", model=record.model, precision=self.rung.precision, took_s=record.took_s)


def _has_room(name: str, needed: int) -> bool:
    """Whether memory is free for a climb beside all else; otherwise float32 serves until the next load."""
    free = psutil.virtual_memory().available
    if free < needed + _SPARE:
        reason = f"it takes {mib(needed)} beside {mib(_SPARE)} that stay free, and {mib(free)} are free"
        remedy = "free memory and load it again, or run `edgewise models encoders --measure`"
        log.warning("encoder_climb_skipped", model=name, reason=reason, remedy=remedy, serving=FLOAT32)
        return False
    return True


class _Climb(threading.Thread):
    """Watches the process that climbs. Its standard input stays open as long as this process lives: its end ends it."""

    def __init__(self, order: Order, done: Callable[[LadderRecord], None]) -> None:
        super().__init__(name="encoder-climb", daemon=True)
        self._order = order
        self._done = done

    def run(self) -> None:
        process = subprocess.Popen(
            module_command(_BUILD), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            process.stdin.write(self._order.to_json() + "\n")
            process.stdin.flush()
            said = [json.loads(line) for line in process.stdout if line.startswith("{")]
            status = process.wait()
        record = read_ladder(self._order.folder, self._order.files.digest) if status == 0 else None
        if record is None:
            reason = next((str(it["error"]) for it in said if "error" in it), f"the process ended with {status}")
            log.warning("encoder_climb_failed", model=self._order.files.name, reason=reason, serving=FLOAT32)
            return
        try:
            self._done(record)
        except EdgewiseError as error:
            log.warning("encoder_climb_failed", model=self._order.files.name, reason=error.message, serving=FLOAT32)
