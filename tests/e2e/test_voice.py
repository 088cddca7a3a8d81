"""`edgewise voice` against a service over doubles of the models: through files, and through a real PulseAudio server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import wave
from array import array
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.voice_files import read_wav, write_wav
from edgewise.cli.voice_talk import begins_with
from edgewise.core.errors import InvalidRequest
from edgewise.pipeline.voice.protocols import Sound, Speech
from tests.api.harness import until
from tests.api.realtime.world import World, world
from tests.e2e.pulse import missing, pulse
from tests.fakes.syllables import packed, syllables
from tests.fakes.voice import VOICE_RATE, DoubleModels, silence, speech

_TIMEOUT_S = 90
needs_pulse = pytest.mark.skipif(missing() is not None, reason=f"the package {missing()} is not installed")


class Command:
    """`edgewise voice` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, service: World, *arguments: str, environment: Mapping[str, str] | None = None) -> Command:
        url = service.url.replace("ws", "http", 1)
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "edgewise.cli.main", "voice", "--url", url, *arguments),
                env={**os.environ, **(environment or {})},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        )

    async def ended(self) -> tuple[int, str, str]:
        """Exit code, standard output and error."""
        out, err = await asyncio.wait_for(self.process.communicate(), _TIMEOUT_S)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()

    async def follow(self, kind: str) -> dict[str, Any]:
        """The next event of this type, of `--json`."""
        assert self.process.stdout is not None
        while True:
            line = await asyncio.wait_for(self.process.stdout.readline(), _TIMEOUT_S)
            assert line, "the command ended before"
            self.events.append(json.loads(line))
            if self.events[-1]["type"] == kind:
                return self.events[-1]


def _question(folder: Path, seconds: float = 0.6) -> Path:
    path = folder / "question.wav"
    write_wav(path, silence(0.3, 24_000) + speech(seconds, 24_000))
    return path


async def test_a_file_is_answered_into_a_file(tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    async with world() as service:
        command = await Command.start(service, "--file", str(_question(tmp_path)), "--out", str(out))
        code, shown, said = await command.ended()
    assert code == 0, said
    assert shown.splitlines() == [
        "You: What is the capital of France?",
        "Edgewise: Paris is the capital. It is large.",
    ]
    assert "heard by ears, spoken by mouth" in said
    assert "1 answers to 1 turns, 0 interrupted" in said
    with wave.open(str(out)) as file:
        assert file.getnframes() / file.getframerate() == pytest.approx(0.02 * 34, rel=0.05)


async def test_only_what_begins_with_the_wake_word_is_answered(tmp_path: Path) -> None:
    models = DoubleModels(said=["What is the weather?", "Computer, what is the weather?"])
    path = tmp_path / "two.wav"
    write_wav(path, (silence(0.3, 24_000) + speech(0.6, 24_000) + silence(1.0, 24_000)) * 2)
    async with world(models) as service:
        command = await Command.start(
            service, "--wake", "computer", "--json", "--file", str(path), "--out", str(tmp_path / "out.wav")
        )
        code, shown, said = await command.ended()
    assert code == 0, said
    events = [json.loads(line) for line in shown.splitlines()]
    assert events[-1]["turns"] == 2
    assert events[-1]["answers"] == 1
    (messages,) = models.asked
    assert [one["content"] for one in messages if one["role"] == "user"] == ["Computer, what is the weather?"]


async def test_a_file_without_speech_ends_without_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "quiet.wav"
    write_wav(path, silence(0.5, 24_000))
    async with world() as service:
        command = await Command.start(service, "--file", str(path), "--out", str(tmp_path / "out.wav"))
        code, _, said = await command.ended()
    assert code == 0
    assert "0 answers to 0 turns" in said


async def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"RIFF")
    async with world() as service:
        for arguments, words in (
            (("--file", str(bad), "--out", "x"), "is no WAV file"),
            (("--file", str(tmp_path / "none.wav"), "--out", "x"), "none.wav"),
            (("--file", str(_question(tmp_path)), "--out", "x", "--model", "other"), "There is only 'tiny'"),
        ):
            code, _, said = await (await Command.start(service, *arguments)).ended()
            assert code != 0
            assert words in said
            assert "Traceback" not in said
    code, _, said = await (await Command.start(service, "--file", str(_question(tmp_path)), "--out", "x")).ended()
    assert code == 3
    assert "no Edgewise service answers" in said


def test_wav_files_of_any_rate_and_channels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(array("h", [1000, 3000] * 48_000).tobytes())
    samples = array("h", read_wav(path))
    assert len(samples) == pytest.approx(24_000, rel=0.01)
    assert samples[12_000] == pytest.approx(2000, abs=20)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8_000)
        file.writeframes(b"\x80" * 100)
    with pytest.raises(InvalidRequest, match="8 bits"):
        read_wav(path)


@pytest.mark.parametrize(
    ("text", "wake", "begins"),
    [
        ("Computer, what is it?", "computer", True),
        ("Hey, Computer! What?", "hey computer", True),
        ("Computers are fine.", "computer", False),
        ("My computer", "computer", False),
        ("", "computer", False),
    ],
)
def test_a_wake_word_is_the_first_word(text: str, wake: str, begins: bool) -> None:
    assert begins_with(text, wake) is begins


@needs_pulse
async def test_a_question_into_the_microphone_is_answered_at_the_speaker(tmp_path: Path) -> None:
    models = DoubleModels(spoken_s=0.03)
    with pulse() as sound, sound.recording() as recorded:
        async with world(models) as service:
            command = await Command.start(service, "--json", "--once", environment=sound.environment)
            await command.follow("session.created")
            player = sound.say(_question(tmp_path))
            await command.follow("response.done")
            summary = await command.follow("edgewise.voice.summary")
            code, _, said = await command.ended()
            assert player.wait(_TIMEOUT_S) == 0
        samples = array("h", recorded.read_bytes()[: recorded.stat().st_size // 2 * 2])
    assert code == 0, said
    loud = sum(1 for value in samples if abs(value) > 4000) / 24_000
    assert loud > 0.5 * 0.03 * 34  # a machine that is busy may lose some
    assert summary["answers"] == 1
    assert summary["input_overflows"] >= 0


class Talker(DoubleModels):
    """A named double that speaks with a made-up voice; everything is as loud as in a room without a headset."""

    async def speak(self, id: str, text: str, how: Speech) -> AsyncGenerator[Sound, None]:
        self.spoken.append(text)
        voice = syllables(self.spoken_s * len(text), 110, VOICE_RATE, seed=len(text))
        yield Sound(samples=packed(voice), rate=VOICE_RATE, compute_s=0.01)


def _other_voice(folder: Path) -> Path:
    path = folder / "other.wav"
    write_wav(path, silence(0.3, 24_000) + packed(syllables(1.5, 210, 24_000, seed=5, loud=0.9)))
    return path


@needs_pulse
async def test_speech_into_the_microphone_silences_the_speaker(tmp_path: Path) -> None:
    models = Talker(spoken_s=0.5, answers=[["A long story. ", "It goes on and on."], ["Yes."]])
    with pulse() as sound:
        async with world(models) as service:
            command = await Command.start(service, "--json", environment=sound.environment)
            await command.follow("session.created")
            sound.say(_other_voice(tmp_path)).wait(_TIMEOUT_S)
            await until(lambda: "speaking" if service.value("voice_sessions") and models.spoken else None)
            sound.say(_other_voice(tmp_path)).wait(_TIMEOUT_S)
            await command.follow("conversation.item.truncated")
            assert (await command.follow("response.done"))["response"]["status"] == "cancelled"
            command.process.send_signal(signal.SIGINT)
            summary = await command.follow("edgewise.voice.summary")
            assert (await command.ended())[0] == 0
    assert summary["interruptions"] <= 1
    assert service.value("voice_barge_ins_total") == 1


@needs_pulse
async def test_an_answer_in_a_room_is_not_interrupted_by_itself_but_by_another_voice(tmp_path: Path) -> None:
    models = Talker(spoken_s=0.25, answers=[["It is a long story indeed."], ["It goes on and on and on, and on."]])
    other = _other_voice(tmp_path)
    with pulse(echo=True) as sound:
        async with world(models) as service:
            command = await Command.start(service, "--json", environment=sound.environment)
            await command.follow("session.created")
            sound.say(other).wait(_TIMEOUT_S)
            assert (await command.follow("response.done"))["response"]["status"] == "completed"
            await asyncio.sleep(0.25 * 26)  # it is played
            assert service.value("voice_barge_ins_total") == 0
            assert len(models.transcribed) == 1
            sound.say(other).wait(_TIMEOUT_S)
            await until(lambda: len(models.spoken) > 1)
            await asyncio.sleep(1.0)
            sound.say(other).wait(_TIMEOUT_S)
            await command.follow("conversation.item.truncated")
            command.process.send_signal(signal.SIGINT)
            summary = await command.follow("edgewise.voice.summary")
            assert (await command.ended())[0] == 0
    assert summary["interruptions"] == 1
    assert service.value("voice_barge_ins_total") == 1


@needs_pulse
@pytest.mark.parametrize(("option", "interrupted"), [("--no-cancel-echo", True), ("--no-interrupt", False)])
async def test_what_else_can_be_done_about_an_echo(tmp_path: Path, option: str, interrupted: bool) -> None:
    models = Talker(spoken_s=0.25, answers=[["It is a long story."], ["Yes."]])
    with pulse(echo=True) as sound:
        async with world(models) as service:
            command = await Command.start(service, "--json", option, environment=sound.environment)
            await command.follow("session.created")
            sound.say(_other_voice(tmp_path)).wait(_TIMEOUT_S)
            done = await command.follow("response.done")
            await asyncio.sleep(0 if interrupted else 0.25 * 20)
            command.process.send_signal(signal.SIGINT)
            assert (await command.ended())[0] == 0
    assert (service.value("voice_barge_ins_total") > 0) is interrupted, done


@needs_pulse
async def test_devices_are_listed_and_found_by_name() -> None:
    async with world() as service:
        with pulse() as sound:
            code, shown, _ = await (
                await Command.start(service, "--list-devices", "--json", environment=sound.environment)
            ).ended()
            assert code == 0
            assert any(one["name"] == "pulse" and one["inputs"] and one["outputs"] for one in json.loads(shown))
            code, _, said = await (
                await Command.start(service, "--input", "no such", environment=sound.environment)
            ).ended()
            assert code == 5
            assert "No input device is called like 'no such'. There are:" in said
        code, _, said = await (
            await Command.start(service, environment={**sound.environment, "PULSE_SERVER": "unix:/nowhere"})
        ).ended()
    assert code == 1
    assert "no input device" in said
