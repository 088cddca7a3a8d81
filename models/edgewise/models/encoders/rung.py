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

from edgewise.core.errors import EdgewiseError, EngineUnavailable, OutOfMemory
from edgewise.core.log import get_logger
from edgewise.core.python import module_command
from edgewise.models.encoders.build import Order
from edgewise.models.encoders.record import (
    FLOAT32,
    GATE,
    HEARING_ROLES,
    LadderRecord,
    card_place_name,
    ladder_folder,
    place_name,
    read_ladder,
)
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME

log = get_logger(__name__)

_BUILD: Final = "edgewise.models.encoders.build"

_LONGEST_S: Final = 2 * 3600.0
"""Of a climb, which takes minutes on a machine that has nothing else to do: its memory is booked, and its model kept, so long."""

Book = Callable[[int], Callable[[], None]]
"""Books bytes for a climb and returns what gives them back; raises `OutOfMemory`."""

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
        samples: Real inputs for calibration and gate; None where they are among the model's own files.
        device: Name of the processor's family.
        threads: As the encoder runs.
        gate: Least cosine to float32.
        card: Whether there is a card whose rungs are tried too.
        climb_bytes: What a climb may take where no record of this place is kept; 0 for none.
        dtype: As of `build.Order`.
    """

    store: Path
    samples: Path | None
    device: str
    threads: int
    gate: float = GATE
    card: bool = False
    climb_bytes: int = 0
    dtype: str = ""

    @property
    def numeric_class(self) -> str:
        """That of float32, which every rung is held to."""
        where = f"cpu-{self.device}-t{self.threads}"
        return f"{RUNTIME}/{f'cuda-or-{where}' if self.card else where}/gate-of-float32"

    @property
    def name(self) -> str:
        """The folder's, of this place."""
        if not self.card:
            return place_name(RUNTIME, self.device, self.threads)
        # Here: it brings torch along.
        from edgewise.models.encoders.card import identity

        found = identity()
        return card_place_name(f"{RUNTIME}-torch-{found.torch}", f"{found.card}-t{self.threads}", found.driver)

    def order(self, files: ModelFiles, role: str, memory_bytes: int | None = None) -> Order:
        """To climb the ladder of a model here. One that hears is judged by the store's voices where no samples are given."""
        voices: tuple[ModelFiles, ...] = ()
        if role in HEARING_ROLES and self.samples is None:
            # Here: it brings the catalog along.
            from edgewise.models.encoders.voices import voices_of
            from edgewise.models.store import Store

            voices = voices_of(Store(self.store))
        return Order(
            files=files,
            role=role,
            samples=self.samples,
            folder=ladder_folder(self.store, files.digest) / self.name,
            device=self.device,
            threads=self.threads,
            gate=self.gate,
            card=self.card,
            memory_bytes=memory_bytes,
            dtype=self.dtype,
            voices=voices,
        )


def place_of(threads: int, options: Mapping[str, str]) -> Place:
    """From the options of `engine.encoders.config.EncoderConfig`."""
    return Place(
        store=Path(options["store"]),
        samples=Path(options["samples"]) if "samples" in options else None,
        device=options["device"],
        threads=threads,
        gate=float(options.get("gate", GATE)),
        card=options.get("card") == "yes",
        climb_bytes=int(options.get("climb_bytes", 0)),
        dtype=options.get("dtype", ""),
    )


class Best(Generic[S]):
    """The rung of one encoder.

    Args:
        order: How its ladder is climbed.
        plain: Opens the float32 graph.
        opened: Opens a candidate's file, by the candidate's name.

    Attributes:
        rung: What serves; another thread may replace it at any time.

    Raises:
        EngineUnavailable: The winner ran on a card, and cannot be opened any more.
    """

    def __init__(self, order: Order, plain: Callable[[], S], opened: Callable[[str, Path], S]) -> None:
        self._order = order
        self._opened = opened
        self.record = read_ladder(order.folder, order.files.digest)
        self.rung = self._kept(self.record) or Rung(FLOAT32, plain())

    def climb(self, needed: int, book: Book) -> None:
        """Climb in the background, unless this place was measured already; `needed` bytes of memory are booked for it."""
        if self.record is None and needed:
            climb_beside(self._order, needed, book, self._take)

    def _kept(self, record: LadderRecord | None) -> Rung[S] | None:
        """The winner's file, if it can be used."""
        if record is None or not record.file:
            return None
        path, name = self._order.folder / record.file, record.chosen.name
        try:
            return Rung(name, self._opened(name, path))
        except Exception as error:  # its errors have no common class but this
            if record.needs_card:
                log.error("encoder_provider_gone", model=record.model, rung=name, reason=str(error)[:300])
                raise EngineUnavailable(
                    f"{record.model}: {name}, which was measured best on {record.device}, cannot be opened any more: {error} "
                    f"Repair that, or choose anew with `edgewise models encoders {record.model} --measure`."
                ) from error
            log.warning("encoder_file_ignored", file=str(path), reason=str(error)[:300])
            return None

    def _take(self, record: LadderRecord) -> None:
        chosen = self._kept(record)
        if chosen is not None:
            self.rung = chosen
        self.record = record
        log.info("encoder_rung", model=record.model, precision=self.rung.precision, took_s=record.took_s)


def climb_beside(
    order: Order, needed: int, book: Book, done: Callable[[LadderRecord], None], *, serving: str = FLOAT32
) -> None:
    """Climb in a process of its own, beside requests; returns at once. Where it cannot begin, the log says why.

    Args:
        needed: Bytes of memory that are booked for it.
        done: Told the record, in a thread of its own; it may raise `EdgewiseError`.
        serving: What serves meanwhile, for the log.
    """
    try:
        free = book(needed)
    except OutOfMemory as error:
        remedy = "free memory and load it again, or run `edgewise models encoders --measure`"
        name = order.files.name
        log.warning("encoder_climb_skipped", model=name, reason=error.message, remedy=remedy, serving=serving)
        return
    _Climb(order, done, free, serving).start()


class _Climb(threading.Thread):
    """Watches the process that climbs. Its standard input stays open as long as this process lives: its end ends it."""

    def __init__(
        self, order: Order, done: Callable[[LadderRecord], None], free: Callable[[], None], serving: str
    ) -> None:
        super().__init__(name="encoder-climb", daemon=True)
        self._order = order
        self._done = done
        self._free = free
        self._serving = serving

    def run(self) -> None:
        try:
            self._run()
        finally:
            self._free()

    def _run(self) -> None:
        process = subprocess.Popen(
            module_command(_BUILD), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        over = threading.Event()

        def end() -> None:
            over.set()
            process.kill()

        limit = threading.Timer(_LONGEST_S, end)
        limit.daemon = True
        limit.start()
        with process:
            process.stdin.write(self._order.to_json() + "\n")
            process.stdin.flush()
            said = [json.loads(line) for line in process.stdout if line.startswith("{")]
            status = process.wait()
        limit.cancel()
        record = read_ladder(self._order.folder, self._order.files.digest) if status == 0 else None
        if record is None:
            ended = f"it took more than {_LONGEST_S:g} s" if over.is_set() else f"the process ended with {status}"
            reason = next((str(it["error"]) for it in said if "error" in it), ended)
            log.warning("encoder_climb_failed", model=self._order.files.name, reason=reason, serving=self._serving)
            return
        try:
            self._done(record)
        except EdgewiseError as error:
            name = self._order.files.name
            log.warning("encoder_climb_failed", model=name, reason=error.message, serving=self._serving)
