"""Silero VAD: the probability of speech for each 32 ms of sound (silero-vad, its network for whole stretches)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME, open_quiet
from edgewise.models.vad.spans import FRAME

CONTEXT: Final = 64
"""Samples before a frame that the network also sees."""
_BLOCK: Final = 512
"""Frames of one call: memory stays small however long a recording is."""
_HIDDEN: Final = 128
_STATE: Final = (1, 1, _HIDDEN)
STATE_BYTES: Final = 4 * (CONTEXT + 2 * _HIDDEN)
"""Of a `VadState` as it is passed along; zeros at the beginning."""

Floats = npt.NDArray[np.float32]


def _silent_state() -> Floats:
    return np.zeros(_STATE, dtype=np.float32)


@dataclass(slots=True)
class VadState:
    """What is carried from one stretch of a stream to the next."""

    before: Floats = field(default_factory=lambda: np.zeros(CONTEXT, dtype=np.float32))
    hidden: Floats = field(default_factory=_silent_state)
    cell: Floats = field(default_factory=_silent_state)

    @classmethod
    def unpack(cls, content: bytes) -> VadState:
        """From `STATE_BYTES` of `pack`."""
        before, hidden, cell = np.split(np.frombuffer(content, dtype="<f4"), (CONTEXT, CONTEXT + _HIDDEN))
        return cls(before, hidden.reshape(_STATE), cell.reshape(_STATE))

    def pack(self) -> bytes:
        """float32, little-endian."""
        return b"".join(part.astype("<f4").tobytes() for part in (self.before, self.hidden, self.cell))


class Silero:
    """Args:
    session: An ONNX Runtime session of silero_vad_16k_sequence.onnx.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def probabilities(self, samples: Floats, state: VadState | None = None) -> Floats:
        """[ceil(n / FRAME)] of speech in each frame; a last frame that is cut is filled with silence.

        Args:
            samples: [n] float32 at 16 kHz.
            state: Of what came before, changed; None at the beginning.
        """
        state = VadState() if state is None else state
        frames = np.zeros((-(-samples.shape[0] // FRAME), FRAME), dtype=np.float32)
        frames.reshape(-1)[: samples.shape[0]] = samples
        found = [self._block(frames[at : at + _BLOCK], state) for at in range(0, frames.shape[0], _BLOCK)]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)

    def _block(self, frames: Floats, state: VadState) -> Floats:
        before = np.concatenate((state.before[None], frames[:-1, -CONTEXT:]))
        given = {"input": np.concatenate((before, frames), axis=1), "h": state.hidden, "c": state.cell}
        speech, state.hidden, state.cell = self._session.run(None, given)
        state.before = frames[-1, -CONTEXT:].copy()
        probabilities: Floats = speech
        return probabilities


class VadEncoder:
    """`engine.encoders.engine.Encoder`: samples in (float32, little-endian), a probability for each frame out.

    With the option `stream` the samples follow those of an earlier request: the state stands before them, and the new one before
    the probabilities.
    """

    def __init__(self, network: Silero) -> None:
        self._network = network

    def check(self, content: bytes, options: Mapping[str, Any]) -> tuple[Floats, VadState | None]:
        if len(content) % 4:
            raise InvalidRequest(f"A recording of {len(content)} bytes is no row of float32 samples.", param="file")
        if not options.get("stream"):
            return np.frombuffer(content, dtype="<f4"), None
        if len(content) < STATE_BYTES:
            raise InvalidRequest(f"A stream of {len(content)} bytes has no state before it.", param="file")
        return np.frombuffer(content, dtype="<f4", offset=STATE_BYTES), VadState.unpack(content[:STATE_BYTES])

    def weigh(self, one: tuple[Floats, VadState | None]) -> float:
        """See `engine.encoders.engine.Weighs`: frames, one at least."""
        return max(1.0, float(one[0].shape[0]) / FRAME)

    def compute(self, inputs: Sequence[Any]) -> Sequence[tuple[Mapping[str, Any], bytes]]:
        return [({}, self._one(samples, state)) for samples, state in inputs]

    def _one(self, samples: Floats, state: VadState | None) -> bytes:
        found = self._network.probabilities(samples, state).astype("<f4").tobytes()
        return found if state is None else state.pack() + found


def load_vad(files: ModelFiles, threads: int) -> tuple[VadEncoder, str]:
    """The network, and its numeric class. One thread: its products are too small for more.

    Raises:
        BadModelFile: It is no network of this kind.
    """
    del threads
    path = next((path for name, path in files.paths.items() if name.endswith(".onnx")), None)
    if path is None:
        raise BadModelFile(f"{files.name}: the model has no .onnx file.")
    session = open_quiet(path, 1)
    names = {one.name for one in session.get_inputs()}
    if names != {"input", "h", "c"}:
        raise BadModelFile(
            f"{files.name}: the network takes {sorted(names)}; silero_vad_16k_sequence.onnx is expected."
        )
    return VadEncoder(Silero(session)), f"{RUNTIME}/cpu/float32"
