"""Whisper's encoder in the form that its ladder found quickest: torch at first, the measured winner as soon as there is one.

What a form makes differs a little from what another makes, so nothing of one may be continued with another. A recording is bound
to the form that serves when its request comes (`serving`), and the form's key is part of the recording's name in every cache.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from edgewise.core.errors import EdgewiseError, EngineUnavailable, OutOfMemory
from edgewise.core.log import get_logger
from edgewise.models.encoders.record import RECORD, form_bytes, place_name, read_ladder
from edgewise.models.multimodal.media import RUNG, Media
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.whisper.encoder import WhisperEncoder

log = get_logger(__name__)

_LOOK_S: Final = 0.02
"""How long a part of an encoding waits for the thread that computes it."""
_PAUSE_S: Final = 60.0
"""After which a winner that had no room, or whose file was not there or changed, is tried once more."""

_PART: Final = 1 << 20

Array = npt.NDArray[np.float32]
Book = Callable[[int], Callable[[], None]]
"""Books bytes for a climb and returns what gives them back; raises `OutOfMemory`."""


class Session(Protocol):
    """A loaded form: [1, mels, 2 * frames] to [1, frames, width]."""

    def __call__(self, batch: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the encoder; `key` names its bits, `name` is the ladder's. Without a session torch computes it.

    `size` is the memory in bytes that it takes beside the weights in torch.
    """

    name: str
    key: str
    session: Session | None
    size: int = 0


class _Replaced(Exception):
    """The file is another than it was when it was hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where the ladders of a model are kept.

    Attributes:
        folder: Of all places (`encoders.record.ladder_folder`).
        digest: The model's.
        device, threads: The place that this is.
    """

    folder: Path
    digest: str
    device: str
    threads: int

    def stamp(self) -> tuple[str, int] | None:
        """Changes when there is another record of this place; cheap, and without ONNX Runtime, loaded for a winner only."""
        for path in self.folder.glob(f"*-{self.device}-t{self.threads}/{RECORD}"):
            try:
                return str(path), path.stat().st_mtime_ns
            except FileNotFoundError:  # dropped meanwhile
                continue
        return None


class RungEncoder(SlicedEncoder):
    """Implements `MediaEncoder` with whatever form a recording names.

    Args:
        plain: In torch.
        dtype: Its weights'.
        kept: Where a winner is looked for, whenever `serving` is read.
        book: Is told how many bytes all forms beside torch take together, whenever that changes; raises `OutOfMemory`, and what
            was booked before stays then.
        climb: Climbs the ladder beside requests, where it is not climbed yet.
    """

    def __init__(
        self,
        plain: WhisperEncoder,
        dtype: torch.dtype,
        kept: Kept,
        book: Callable[[int], None],
        climb: Callable[[Book], None] | None = None,
    ) -> None:
        name = f"torch-{str(dtype).removeprefix('torch.')}"
        self._plain, self._dtype = plain, dtype
        self._kept, self._book, self._climb = kept, book, climb
        self._torch = Form(name, name, None)
        self._best = self._torch
        self._forms = {name: self._torch}
        self._ran = name
        self._opening = 0  # bytes of a form that is being opened
        self._seen: tuple[str, int] | None = None
        self._again: float | None = None  # when what was seen is tried once more
        self._lock = threading.Lock()
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="encoder-open")
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._look(wait=True)

    @property
    def serving(self) -> str:
        """Key of the form for what comes now. A new winner is opened beside requests, and serves once it is open."""
        self._look(wait=False)
        return self._best.key

    @property
    def rung(self) -> str:
        """Name of the form that ran last."""
        return self._ran

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`; a part of what torch does not compute is a moment of waiting for the thread that does."""
        key = str(item.options.get(RUNG, self._torch.key))
        form = self._forms.get(key)
        if form is None:
            raise EngineUnavailable(
                f"The form {key} of the encoder, with which this recording was begun, has been replaced: ask again.",
                retry_after_s=1.0,
            )
        self._ran = form.name
        if form.session is None:
            return (yield from self._plain.slices(item))
        spectrogram = self._plain.spectrogram(item)[None].cpu().numpy()
        computing = self._computer.submit(form.session, spectrogram)
        while not _done(computing):
            yield
        try:
            states = torch.from_numpy(computing.result()[0])
        except Exception as error:  # its errors have no common class but this
            self._drop(form, error)
            raise EngineUnavailable(
                f"The form {form.name} of the encoder failed and is no longer used: ask again.", retry_after_s=1.0
            ) from error
        rows = states.to(self._dtype).to(self._plain.device)
        return functional.pad(rows, (0, 0, 0, item.count - rows.shape[0]))

    def improve(self, book: Book) -> None:
        """See `engine.encoders.climbs.Improves`; what wins is found as any other record is."""
        if self._climb is not None:
            self._climb(book)

    def close(self) -> None:
        self._opener.shutdown(wait=False, cancel_futures=True)
        self._computer.shutdown(wait=False, cancel_futures=True)

    def _look(self, *, wait: bool) -> None:
        stamp = self._kept.stamp()
        with self._lock:
            again = self._again is not None and time.monotonic() >= self._again
            if stamp == self._seen and not again:
                return
            self._seen, self._again = stamp, None
        opening = self._opener.submit(self._open)
        if wait:
            opening.result()

    def _open(self) -> None:
        """Read the record and put its winner in force. Whatever is wrong with it, what served goes on."""
        try:
            form = self._winner()
        except (EdgewiseError, OSError, ImportError, _Replaced) as error:
            with self._lock:
                if isinstance(error, OutOfMemory | OSError | _Replaced):
                    self._again = time.monotonic() + _PAUSE_S
            log.warning("encoder_rung_not_opened", reason=str(error)[:300], serving=self._best.name)
            return
        with self._lock:
            # The one before may be named by recordings that are in work.
            self._forms = {one.key: one for one in (self._torch, self._best, form)}
            self._best, self._opening = form, 0
            self._hold()
        log.info("encoder_rung", model=self._kept.digest, precision=form.name)

    def _winner(self) -> Form:
        if self._seen is None:
            return self._torch
        # Here: it brings ONNX Runtime along.
        from edgewise.models.encoders.tensor_network import TensorSession
        from edgewise.models.onnx_session import RUNTIME

        folder = self._kept.folder / place_name(RUNTIME, self._kept.device, self._kept.threads)
        record = read_ladder(folder, self._kept.digest)
        if record is None or not record.file or record.needs_card:
            return self._torch
        path = folder / record.file
        digest = _digest(path)
        key = f"{record.chosen.name}@{digest}"
        known = self._forms.get(key)
        if known is not None:
            return known
        size = form_bytes(record)
        with self._lock:
            # What was in force before the one that is now has had its time: never more than two beside torch.
            self._forms = {one.key: one for one in (self._torch, self._best)}
            self._opening = size
        try:
            with self._lock:
                self._hold()
            session = _opened(lambda: TensorSession(path, self._kept.threads), path)
            if _digest(path) != digest:
                raise _Replaced(f"{path} was replaced while it was opened")
        except BaseException:
            with self._lock:
                self._opening = 0
                self._hold()
            raise
        return Form(record.chosen.name, key, session, size)

    def _hold(self) -> None:
        self._book(self._opening + sum(form.size for form in self._forms.values()))

    def _drop(self, form: Form, error: Exception) -> None:
        with self._lock:
            self._forms = {key: one for key, one in self._forms.items() if key != form.key}
            if self._best.key == form.key:
                self._best = self._torch
            self._hold()
        log.error("encoder_rung_failed", rung=form.name, reason=str(error)[:300], serving=self._best.name)


def _opened(opens: Callable[[], Session], path: Path) -> Session:
    try:
        return opens()
    except Exception as error:  # its errors have no common class but this
        raise EngineUnavailable(f"{path} cannot be opened: {str(error)[:300]}") from error


def _digest(path: Path) -> str:
    """A part at a time: the file may be large."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART):
            found.update(part)
    return found.hexdigest()[:16]


def _done(computing: Future[Array]) -> bool:
    try:
        computing.exception(timeout=_LOOK_S)
    except NotYet:
        return False
    return True
