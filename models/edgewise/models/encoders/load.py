"""An encoder of texts for an engine process: it serves at once, and gets better where a ladder can be climbed.

The first rung is float32, made of the weights. Where no record of this runtime and device is kept, a process of its own climbs
the ladder in the background (`build`); its winner then takes the place of float32 between two batches.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import psutil

from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.core.python import module_command
from edgewise.core.sizes import mib
from edgewise.models.encoders.build import Order
from edgewise.models.encoders.graph import build_graph
from edgewise.models.encoders.record import LadderRecord, ladder_folder, place_name, read_ladder
from edgewise.models.encoders.rows import Rows, unpack_rows
from edgewise.models.encoders.run import Session
from edgewise.models.encoders.shape import EncoderShape, read_shape
from edgewise.models.encoders.weights import Array, read_weights
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME

log = get_logger(__name__)

FLOAT32: Final = "fp32"
PARAM: Final = "input"
MAX_BATCH_TOKENS: Final = 4096
"""Of texts that are computed together, padding included."""
_BUILD: Final = "edgewise.models.encoders.build"
_ALIKE: Final = 1.5
"""The longest text of a batch is no longer than the shortest by more than this factor: padding costs as much as text."""
_CLIMB: Final = 12
"""Times the weights in float32 that a climb was measured to take (1,053 MiB for all-MiniLM-L6-v2)."""
_SPARE: Final = 512 << 20
_SHORT: Final = 16
"""Tokens below which texts count as equally long."""

Result = tuple[Mapping[str, Any], bytes]


class Runs(Protocol):
    """`run.Session`, or a test's double."""

    def run(self, rows: Sequence[Sequence[int]]) -> Array: ...


@dataclass(frozen=True, slots=True)
class Rung:
    """What serves: replaced as a whole, so a batch is computed by one."""

    precision: str
    session: Runs


class TextEncoder:
    """Implements `engine.encoders.engine.Encoder`: each input is the rows of one request, its result their vectors.

    Attributes:
        rung: What serves; another thread may replace it at any time.
    """

    def __init__(self, shape: EncoderShape, rung: Rung) -> None:
        self.rung = rung
        self._shape = shape

    def check(self, content: bytes, options: Mapping[str, Any]) -> Rows:
        """Rows that the graph can take. Raises `InvalidRequest`."""
        del options
        rows = unpack_rows(content)
        for at, row in enumerate(rows):
            if not 0 < len(row) <= self._shape.max_tokens:
                raise InvalidRequest(
                    f"'{PARAM}' {at} has {len(row)} tokens; this model reads 1 to {self._shape.max_tokens}.",
                    param=PARAM,
                )
            if max(row) >= self._shape.vocab:
                raise InvalidRequest(
                    f"'{PARAM}' {at} has the token id {max(row)}; this model knows those below {self._shape.vocab}.",
                    param=PARAM,
                )
        return rows

    def compute(self, inputs: Sequence[Rows]) -> list[Result]:
        """Vectors as float32 in machine order, one after the other; rows of all requests share batches."""
        rung = self.rung
        rows = [row for request in inputs for row in request]
        vectors = np.zeros((len(rows), self._shape.width), np.float32)
        for batch in batches([len(row) for row in rows]):
            vectors[batch] = rung.session.run([rows[at] for at in batch])
        results: list[Result] = []
        at = 0
        for request in inputs:
            part = vectors[at : at + len(request)]
            at += len(request)
            results.append(({"precision": rung.precision, "width": self._shape.width}, part.tobytes()))
        return results


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts to compute together: of like length, and at most `MAX_BATCH_TOKENS` with their padding."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda it: lengths[it]):
        alike = not batch or lengths[at] <= _ALIKE * max(lengths[batch[0]], _SHORT)
        if not alike or (len(batch) + 1) * lengths[at] > MAX_BATCH_TOKENS:
            if batch:
                yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def load_text_encoder(
    files: ModelFiles, threads: int, *, store: str, text: str, device: str, climb: bool = True
) -> tuple[TextEncoder, str]:
    """The encoder, and its numeric class: that of float32, which every rung is held to.

    Args:
        store: The model store's folder, where ladders are kept.
        text: File of prose for calibration and gate.
        device: Name of the processor's family.
        climb: Climb the ladder where no record of this place is kept.

    Raises:
        UnsupportedModel, BadModelFile: It cannot be read.
    """
    shape = read_shape(files)
    folder = ladder_folder(Path(store), files.digest) / place_name(RUNTIME, device, threads)
    record = read_ladder(folder, files.digest)
    encoder = TextEncoder(shape, _kept(folder, record, threads) or _float32(files, shape, threads))
    if record is None and climb and _has_room(files.name, shape):
        order = Order(
            files=files, text=Path(text), folder=folder, device=device, threads=threads, memory_bytes=_room(shape)
        )
        _Climb(order, lambda found: _take(encoder, folder, found, threads)).start()
    return encoder, f"{RUNTIME}/cpu-{device}-t{threads}/gate-of-float32"


def _has_room(name: str, shape: EncoderShape) -> bool:
    """Whether memory is free for a climb beside all else; otherwise float32 serves until the next load."""
    needed, free = _CLIMB * shape.weight_bytes, psutil.virtual_memory().available
    if free < needed + _SPARE:
        reason = f"it takes {mib(needed)} beside {mib(_SPARE)} that stay free, and {mib(free)} are free"
        remedy = "free memory and load it again, or run `edgewise models encoders --measure`"
        log.warning("encoder_climb_skipped", model=name, reason=reason, remedy=remedy, serving=FLOAT32)
        return False
    return True


def _room(shape: EncoderShape) -> int:
    """Address space for a climb: a few graphs at once, each with its weights twice, and what the runtime reserves."""
    return 16 * shape.weight_bytes + (1 << 30)


def _float32(files: ModelFiles, shape: EncoderShape, threads: int) -> Rung:
    return Rung(FLOAT32, Session(build_graph(shape, read_weights(files, shape)).SerializeToString(), threads))


def _kept(folder: Path, record: LadderRecord | None, threads: int) -> Rung | None:
    """The winner's file, if it can be used."""
    if record is None or not record.file:
        return None
    try:
        return Rung(record.chosen.name, Session(folder / record.file, threads))
    except Exception as error:  # noqa: BLE001 - its errors have no common class but this; float32 serves instead
        log.warning("encoder_file_ignored", file=str(folder / record.file), reason=str(error)[:300])
        return None


def _take(encoder: TextEncoder, folder: Path, record: LadderRecord, threads: int) -> None:
    chosen = _kept(folder, record, threads)
    if chosen is not None:
        encoder.rung = chosen
    log.info("encoder_rung", model=record.model, precision=encoder.rung.precision, took_s=record.took_s)


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
