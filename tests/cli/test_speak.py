"""`edgewise speak --play` without a loudspeaker; files are written in `tests/api/audio/test_speech.py`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from edgewise.cli import speak as module
from edgewise.cli.voice_sound import NoSound
from edgewise.models.media.sound_out import PCM_RATE


class PortAudioError(Exception):
    """As sounddevice has it."""


class Stream:
    """A named double of an output stream of sounddevice: it keeps what is played."""

    def __init__(self, played: list[bytes], **options: Any) -> None:
        assert options == {"samplerate": PCM_RATE, "channels": 1, "dtype": "int16"}
        self._played = played

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def write(self, piece: bytes) -> None:
        self._played.append(piece)


class Client:
    """A named double of a client: its service speaks two pieces, cut in the middle of a sample."""

    def __init__(self, *arguments: Any) -> None: ...

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None: ...

    def pieces(self, path: str, body: dict[str, Any]) -> list[bytes]:
        assert body["response_format"] == "pcm"
        return [b"abc", b"d", b"ef"]


def test_pieces_are_played_in_whole_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[bytes] = []

    def open_stream(**options: Any) -> Stream:
        return Stream(played, **options)

    double = SimpleNamespace(RawOutputStream=open_stream, PortAudioError=PortAudioError)
    monkeypatch.setitem(sys.modules, "sounddevice", double)
    monkeypatch.setattr(module, "connect", Client)
    module.speak("Yes.", play=True)
    assert b"".join(played) == b"abcdef"
    assert all(len(piece) % 2 == 0 for piece in played)


def test_what_is_missing_for_playing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_stream(**options: Any) -> Stream:
        raise PortAudioError("no default output device")

    monkeypatch.setattr(module, "connect", Client)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(NoSound, match=r"pip install 'edgewise\[voice\]'.*write a file with --out"):
        module.speak("Yes.", play=True)
    double = SimpleNamespace(RawOutputStream=open_stream, PortAudioError=PortAudioError)
    monkeypatch.setitem(sys.modules, "sounddevice", double)
    with pytest.raises(NoSound, match=r"no default output device.*--out"):
        module.speak("Yes.", play=True)
