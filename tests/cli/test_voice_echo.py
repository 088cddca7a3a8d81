"""Our own voice in the microphone: taken out, while that of others stays."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import numpy as np
import pytest

from edgewise.cli.voice_echo import EchoCanceller, EchoFree, make_canceller
from edgewise.cli.voice_sound import RATE
from tests.fakes.syllables import Sound, packed, room, syllables


def cancelled(canceller: EchoCanceller, played: bytes, played_rate: int, heard: bytes) -> Sound:
    """In blocks of 20 ms, as devices give them."""
    there, here = played_rate // 50 * 2, RATE // 50 * 2
    out = b""
    for number in range(len(heard) // here):
        canceller.played(played[number * there : (number + 1) * there])
        out += canceller.clean(heard[number * here : (number + 1) * here])
    return np.frombuffer(out, "<i2") / 32767


def decibels(sound: Sound) -> float:
    return float(10 * np.log10(np.mean(sound**2) + 1e-12))


def made(rate: int) -> EchoCanceller:
    canceller = make_canceller(rate)
    assert canceller is not None
    return canceller


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
def test_our_own_voice_is_taken_out_and_another_one_stays(rate: int) -> None:
    own = syllables(8.0, 110, RATE)
    other = np.zeros_like(own)
    other[5 * RATE : 7 * RATE] = syllables(2.0, 200, RATE, seed=7)
    played = np.interp(np.arange(8 * rate) / rate, np.arange(8 * RATE) / RATE, own)
    echo = room(own, RATE)
    out = cancelled(made(rate), packed(played), rate, packed(echo + other))
    alone, both = slice(RATE, 5 * RATE), slice(5 * RATE, 7 * RATE)
    assert decibels(out[alone]) < decibels(echo[alone]) - 30
    assert decibels(out[both]) > decibels(other[both]) - 12
    assert np.abs(out[alone]).max() < 0.05 < np.abs(out[both]).max()


def test_with_a_headset_another_voice_stays_from_the_beginning() -> None:
    own, other = syllables(4.0, 110, RATE), syllables(4.0, 200, RATE, seed=7)
    out = cancelled(made(RATE), packed(own), RATE, packed(other))
    for second in range(4):
        part = slice(second * RATE, (second + 1) * RATE)
        assert decibels(out[part]) > decibels(other[part]) - (16 if not second else 12)


def test_nothing_is_taken_out_while_nothing_is_played() -> None:
    other = syllables(3.0, 200, RATE)
    out = cancelled(made(RATE), bytes(2 * len(other)), RATE, packed(other))
    assert abs(decibels(out[RATE:]) - decibels(other[RATE:])) < 3


def test_the_canceller_takes_what_devices_give_in_any_pieces() -> None:
    canceller = made(RATE)
    assert canceller.clean(bytes(100)) == b""
    assert len(canceller.clean(bytes(2 * 240))) == 2 * 240
    canceller.played(bytes(10 * 2 * RATE))  # a microphone that stood still for long
    assert len(canceller.clean(bytes(2 * 240 * 3))) == 2 * 240 * 3


async def test_a_microphone_without_echo_is_a_microphone() -> None:
    class Microphone:
        overflows = 3
        ended_at = None

        async def blocks(self) -> AsyncIterator[bytes]:
            yield bytes(2 * 480)

    source = EchoFree(Microphone(), made(RATE))
    assert source.overflows == 3
    assert [len(block) async for block in source.blocks()] == [2 * 480]


def test_without_the_library_there_is_no_canceller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "livekit.rtc.apm", None)
    assert make_canceller(RATE) is None
