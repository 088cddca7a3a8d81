"""Encoded sound to samples: every format that is promised, and what is refused, in the media process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from edgewise.core.errors import EngineFault, InvalidRequest
from edgewise.models.media.process import MediaProcess
from tests.models.media.sounds import FORMATS, bad_sounds, encode, tone, wav


@pytest.fixture(scope="module")
def process() -> Iterator[MediaProcess]:
    made = MediaProcess()
    yield made
    made.close()


def _decode(process: MediaProcess, data: bytes, **options: Any) -> tuple[dict[str, Any], npt.NDArray[np.float32]]:
    found, content = process.decode("audio", data, options, param="file")
    return found, np.frombuffer(content, "<f4")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_any_rate_and_channels_become_the_same_sound(process: MediaProcess, name: str) -> None:
    found, samples = _decode(process, encode(tone(1.0), name))
    assert (found["rate"], found["codec"][:3]) == (FORMATS[name][2], FORMATS[name][1].removeprefix("lib")[:3])
    assert abs(samples.shape[0] - 16_000) < 1700  # AAC in bare frames keeps what its encoder put before and after
    middle = samples[4000:12_000] * np.hanning(8000)
    peak = int(np.argmax(np.abs(np.fft.rfft(middle))))
    assert peak == pytest.approx(220, abs=1)  # 440 Hz in half a second
    assert float(np.abs(samples[4000:12_000]).max()) == pytest.approx(0.5, abs=0.06)


def test_what_lies_above_half_the_rate_is_not_folded_down(process: MediaProcess) -> None:
    _, samples = _decode(process, wav(tone(1.0, hertz=11_000, rate=44_100), 44_100))
    assert float(np.abs(samples[2000:-2000]).max()) < 0.005


def test_twenty_broken_files_are_refused_in_words_that_help(process: MediaProcess) -> None:
    bad = bad_sounds()
    assert len(bad) == 20
    for name, data in bad.items():
        with pytest.raises(InvalidRequest) as refused:
            _decode(process, data)
        message = refused.value.message
        assert refused.value.param == "file", name
        assert "'file'" in message, name
        assert any(word in message for word in ("send", "Save it again", "cut off")), (name, message)


def test_memory_stays_flat_over_broken_files(process: MediaProcess) -> None:
    files = [*bad_sounds().values(), wav(tone(20.0))]

    def all_of_them() -> int:
        for data in files:
            try:
                _decode(process, data)
            except InvalidRequest:
                continue
        return psutil.Process(process.pid).memory_info().rss

    all_of_them()
    first = all_of_them()
    for _ in range(8):
        last = all_of_them()
    assert last - first < 8 << 20


def test_windows_media_is_named_and_formats_are_listed(process: MediaProcess) -> None:
    with pytest.raises(InvalidRequest, match=r"Windows Media.*WAV, FLAC, MP3"):
        _decode(process, bad_sounds()["windows media"])


def test_limits_hold_before_and_while_it_is_decoded(process: MediaProcess) -> None:
    with pytest.raises(InvalidRequest, match=r"26\.0 MiB: at most 25\.0 MiB"):
        _decode(process, bytes(26 << 20))
    with pytest.raises(InvalidRequest, match="lasts 5 s: at most 2 s"):
        _decode(process, wav(tone(5.0)), max_seconds=2.0)
    with pytest.raises(InvalidRequest, match="at most 2 s"):  # frames alone: no header says how long it is
        _decode(process, encode(tone(5.0), "aac"), max_seconds=2.0)


def test_a_cut_file_gives_what_is_there_and_says_what_it_claimed(process: MediaProcess) -> None:
    whole = encode(tone(4.0), "flac")
    found, samples = _decode(process, whole[: len(whole) // 2])
    assert found["claimed"] == pytest.approx(4.0)
    assert found["seconds"] == samples.shape[0] / 16_000
    assert 1.0 < found["seconds"] < 3.0


def test_a_file_with_many_bad_packets_is_refused(process: MediaProcess) -> None:
    broken = bytearray(encode(tone(5.0), "flac"))
    for at in range(9000, len(broken) - 4000, 700):
        broken[at : at + 300] = os.urandom(300)
    with pytest.raises(InvalidRequest, match="damaged"):
        _decode(process, bytes(broken))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(process: MediaProcess, value: float) -> None:
    samples = tone(0.5)
    samples[4000] = value
    header = b"RIFF" + struct.pack("<I", 36 + samples.nbytes) + b"WAVEfmt "
    header += struct.pack("<IHHIIHH4sI", 16, 3, 1, 16_000, 64_000, 4, 32, b"data", samples.nbytes)
    with pytest.raises(InvalidRequest, match=r"'file' is damaged.*Save it again"):
        _decode(process, header + samples.tobytes())


def test_a_dead_process_is_replaced(process: MediaProcess) -> None:
    _decode(process, wav(tone(0.1)))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert _decode(process, wav(tone(0.1)))[1].shape == (1600,)


def _child(process: MediaProcess) -> psutil.Process:
    """Its process, when it runs."""
    while process.pid is None:
        time.sleep(0.01)
    return psutil.Process(process.pid)


async def test_who_waits_holds_no_thread_and_who_leaves_ends_its_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    process, sound = MediaProcess(), wav(tone(0.1))
    with monkeypatch.context() as patch:
        silent = [sys.executable, "-c", "import time; time.sleep(600)"]
        patch.setattr("edgewise.core.confined.module_command", lambda module: silent)
        asked = [asyncio.create_task(process.turn(lambda: _decode(process, sound))) for _ in range(4)]
        child = await asyncio.to_thread(_child, process)
        assert await asyncio.to_thread(lambda: 1) == 1
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert all(one.cancelled() for one in asked)
    assert (await process.turn(lambda: _decode(process, sound)))[1].shape == (1600,)
    assert not child.is_running()
    process.close()


def test_a_job_that_loops_is_ended_and_one_that_dies_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text(
        "import os\ndef loop(data, param):\n  while True: pass\n"
        "def die(data, param):\n  os._exit(3)\n"
        "def grow(data, param):\n  return {}, b''.join(bytes(1 << 28) for _ in range(64))\n"
    )
    worker = tmp_path / "hostile_worker.py"
    worker.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from edgewise.models.media import process, worker\n"
        "worker.CPU_SECONDS = 0.5\n"
        "worker.JOBS = {name: 'hostile:' + name for name in ('loop', 'die', 'grow')}\n"
        "worker.main()\n"
    )
    monkeypatch.setattr("edgewise.core.confined.module_command", lambda module: [sys.executable, str(worker)])
    made = MediaProcess()
    try:
        with pytest.raises(InvalidRequest, match="s to decode"):
            made.decode("loop", b"", {}, param="file")
        with pytest.raises(EngineFault, match="status 3"):
            made.decode("die", b"", {}, param="file")
        with pytest.raises(InvalidRequest, match="needs more than 3072 MiB"):
            made.decode("grow", b"", {}, param="file")
    finally:
        made.close()


def test_spoilt_files_give_samples_or_an_error(process: MediaProcess) -> None:
    """Bytes changed, left out and put in at random: the process answers each, and is the same one at the end."""
    chance = random.Random(0)
    whole = [encode(tone(0.3), name) for name in FORMATS]
    _decode(process, whole[0])
    first, read = process.pid, 0
    for _ in range(600):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 2, 4, 16, 64))):
            at = chance.randrange(len(data))
            kind = chance.random()
            if kind < 0.7:
                data[min(at, chance.choice((64, 256, at)))] = chance.choice((0, 255, chance.randrange(256)))
            elif kind < 0.85:
                data = data[: at + 1]
            else:
                data[at:at] = chance.randbytes(4)
        try:
            found, samples = _decode(process, bytes(data))
        except InvalidRequest:
            continue
        assert samples.shape[0] == round(found["seconds"] * 16_000)
        read += 1
    assert read > 100
    assert process.pid == first
