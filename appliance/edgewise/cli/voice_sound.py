"""Where a voice session's sound comes from and goes to: a microphone and a speaker, through PortAudio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from edgewise.core.errors import EdgewiseError, InvalidRequest, NotFound
from edgewise.models.media.resample import Resampler
from edgewise.pipeline.voice.sound import WIDTH

if TYPE_CHECKING:
    import sounddevice

RATE: Final = 24_000
"""Of the session, in both directions."""
BLOCK_S: Final = 0.02
_LATENCY_S: Final = 0.05
"""Of devices: what a busy machine can keep up with, and is hardly heard as a delay."""
_WAITING: Final = 100
"""Blocks of the microphone that may wait to be sent; older ones are lost, and counted."""


class NoSound(EdgewiseError):
    """The library for sound is not there, or no device is."""

    code = "no_sound"


class Source(Protocol):
    """Sound in."""

    @property
    def overflows(self) -> int:
        """Times that sound was lost."""

    @property
    def ended_at(self) -> float | None:
        """When (monotonic seconds) it had no more to say; None while it has, and for devices."""

    def blocks(self) -> AsyncIterator[bytes]:
        """Samples at `RATE`, as they come. Never ends: a source that is exhausted is silent."""


class Sink(Protocol):
    """Sound out. What is played belongs to an item, the answer that it is a part of."""

    @property
    def underflows(self) -> int:
        """Times that a device had nothing to play in the middle of an answer."""

    @property
    def playing(self) -> bool: ...

    def play(self, item_id: str, samples: bytes) -> None: ...

    def stop(self) -> tuple[str, int] | None:
        """Drop what was not played yet; whose it was and how many of its milliseconds were played, if it was playing."""


def level(samples: bytes) -> float:
    """Root mean square of 16-bit samples, 0 to 1."""
    import numpy as np

    values = np.frombuffer(samples, dtype="<i2").astype(np.float32)
    return float(np.sqrt(np.mean(values * values)) / 32768) if values.size else 0.0


def load_sounddevice(instead: str = "use --file and --out") -> Any:
    """The module. Raises `NoSound` naming what is missing; `instead` is what is done without devices."""
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise NoSound(
            f"Sound devices need the Python package sounddevice: `pip install 'edgewise[voice]'`. Without devices {instead}."
        ) from error
    except OSError as error:
        raise NoSound(
            "Sound devices need the PortAudio library: `apt install libportaudio2` on Debian and Ubuntu, `dnf install portaudio` "
            f"on Fedora. Without devices {instead}."
        ) from error
    return sounddevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A sound device; `inputs` and `outputs` are channels, `default` is "input", "output", both or neither."""

    index: int
    name: str
    system: str
    inputs: int
    outputs: int
    rate: int
    default: tuple[str, ...]


def list_devices() -> list[Device]:
    """Raises `NoSound` without the library."""
    sd = load_sounddevice()
    defaults = dict(zip(("input", "output"), sd.default.device, strict=True))
    systems = sd.query_hostapis()
    return [
        Device(
            index=index,
            name=one["name"],
            system=systems[one["hostapi"]]["name"],
            inputs=one["max_input_channels"],
            outputs=one["max_output_channels"],
            rate=int(one["default_samplerate"]),
            default=tuple(kind for kind, at in defaults.items() if at == index),
        )
        for index, one in enumerate(sd.query_devices())
    ]


def find_device(wanted: str | None, kind: str) -> int:
    """The index of a device by its number or a part of its name; None takes the system's default.

    Args:
        kind: "input" or "output".

    Raises:
        NoSound: There is none at all.
        NotFound: None is called like that; InvalidRequest: several are.
    """
    devices = [one for one in list_devices() if (one.inputs if kind == "input" else one.outputs)]
    if not devices:
        raise NoSound(
            f"This machine has no {kind} device for sound, or its sound server does not run (`pactl info`). Without devices use "
            "--file and --out."
        )
    if wanted is None:
        return next((one.index for one in devices if kind in one.default), devices[0].index)
    found = [one for one in devices if wanted == str(one.index)] or [
        one for one in devices if wanted.lower() in one.name.lower()
    ]
    exact = [one for one in found if one.name == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0].index
    names = ", ".join(f"{one.index} '{one.name}'" for one in (found or devices))
    if found:
        raise InvalidRequest(
            f"Several {kind} devices are called like '{wanted}': {names}. Give a number.", param=f"--{kind}"
        )
    raise NotFound(f"No {kind} device is called like '{wanted}'. There are: {names}.")


def _rate_of(sd: Any, index: int, kind: str) -> int:
    """`RATE` where the device takes it, else its own."""
    check = sd.check_input_settings if kind == "input" else sd.check_output_settings
    try:
        check(device=index, channels=1, dtype="int16", samplerate=RATE)
    except (sd.PortAudioError, ValueError):
        return int(sd.query_devices(index)["default_samplerate"])
    return RATE


def _opened(sd: Any, make: Any, kind: str, index: int) -> Any:
    """A stream that runs. Raises `NoSound` with what PortAudio says."""
    try:
        stream = make()
        stream.start()
    except (sd.PortAudioError, ValueError) as error:
        name = sd.query_devices(index)["name"]
        raise NoSound(
            f"The {kind} device {index} '{name}' cannot be used: {error}. `edgewise voice --list-devices` shows all."
        ) from error
    return stream


class Microphone:
    """An input device. Its callback runs in a thread of PortAudio."""

    ended_at = None

    def __init__(self, index: int) -> None:
        sd = load_sounddevice()
        self.overflows = 0
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        rate = _rate_of(sd, index, "input")
        self._resampler = Resampler(rate, RATE)
        self._stream = _opened(
            sd,
            lambda: sd.RawInputStream(
                samplerate=rate,
                blocksize=int(rate * BLOCK_S),
                device=index,
                channels=1,
                dtype="int16",
                latency=_LATENCY_S,
                callback=self._take,
            ),
            "input",
            index,
        )

    def _take(self, samples: Any, frames: int, when: Any, status: sounddevice.CallbackFlags) -> None:
        del frames, when
        self._loop.call_soon_threadsafe(self._put, bytes(samples), bool(status.input_overflow))

    def _put(self, samples: bytes, lost: bool) -> None:
        self.overflows += lost
        if self._blocks.full():
            self._blocks.get_nowait()
            self.overflows += 1
        self._blocks.put_nowait(samples)

    async def blocks(self) -> AsyncIterator[bytes]:
        while True:
            yield self._resampler.feed(await self._blocks.get())

    def close(self) -> None:
        self._stream.close()


class Loudspeaker:
    """An output device. Its callback runs in a thread of PortAudio.

    Attributes:
        rate: Samples a second of the device.
        given: Told in that thread of all samples that the device gets, silence too.
    """

    def __init__(self, index: int) -> None:
        sd = load_sounddevice()
        self.underflows = 0
        self.given: Callable[[bytes], None] | None = None
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._item: str | None = None
        self.rate = _rate_of(sd, index, "output")
        self._resampler = Resampler(RATE, self.rate)
        self._played = 0
        self._stream = _opened(
            sd,
            lambda: sd.RawOutputStream(
                samplerate=self.rate,
                blocksize=int(self.rate * BLOCK_S),
                device=index,
                channels=1,
                dtype="int16",
                latency=_LATENCY_S,
                callback=self._give,
            ),
            "output",
            index,
        )

    def _give(self, samples: Any, frames: int, when: Any, status: sounddevice.CallbackFlags) -> None:
        del when
        size = frames * WIDTH
        with self._lock:
            piece = bytes(self._waiting[:size])
            del self._waiting[: len(piece)]
            self._played += len(piece)
            self.underflows += bool(status.output_underflow) and bool(piece)
        piece = piece.ljust(size, b"\0")
        if self.given is not None:
            self.given(piece)
        samples[:] = piece

    @property
    def playing(self) -> bool:
        return bool(self._waiting)

    def play(self, item_id: str, samples: bytes) -> None:
        if item_id != self._item:
            self._resampler = Resampler(RATE, self.rate)
        ready = self._resampler.feed(samples)
        with self._lock:
            if item_id != self._item:
                self._item, self._played = item_id, -len(self._waiting)
            self._waiting += ready

    def stop(self) -> tuple[str, int] | None:
        with self._lock:
            if not self._waiting or self._item is None:
                return None
            self._waiting.clear()
            item, self._item = self._item, None
            return item, max(0, self._played) * 1000 // (self.rate * WIDTH)

    def close(self) -> None:
        self._stream.close()
