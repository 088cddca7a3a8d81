"""A PulseAudio server of a test's own: a virtual microphone that hears what a test plays, and a speaker whose sound is recorded.

Needs the Debian packages pulseaudio, pulseaudio-utils, libportaudio2 and libasound2-plugins: PortAudio reaches PulseAudio through
ALSA.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RATE: Final = 24_000
_START_S: Final = 30.0


def missing() -> str | None:
    """Which package is not there; None where nothing is missing."""
    for program, package in (("pulseaudio", "pulseaudio"), ("paplay", "pulseaudio-utils")):
        if shutil.which(program) is None:
            return package
    if ctypes.util.find_library("portaudio") is None:
        return "libportaudio2"
    plugins = ("/usr/lib", "/usr/lib64")
    if not any(next(Path(root).glob("**/libasound_module_pcm_pulse.so"), None) for root in plugins):
        return "libasound2-plugins"
    return None


@dataclass
class Pulse:
    """A running server. `environment` leads programs to it; what is recorded is in the file that `recording` yields."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PULSE_SERVER": f"unix:{self.folder}/native",
            "XDG_RUNTIME_DIR": str(self.folder),
            "PULSE_RUNTIME_PATH": str(self.folder),
            "HOME": str(self.folder),
        }

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def ready(self) -> bool:
        asked = subprocess.run(["pactl", "info"], env=self._environment(), capture_output=True, check=False)
        return asked.returncode == 0

    def say(self, wav: Path) -> subprocess.Popen[bytes]:
        """Play a file into the microphone; ends by itself."""
        return subprocess.Popen(["paplay", "--device=mouth", str(wav)], env=self._environment())

    @contextmanager
    def recording(self, sink: str = "speaker") -> Iterator[Path]:
        """16-bit samples at `RATE` of what is played meanwhile: by the "speaker", or by it and into the microphone ("room")."""
        path = self.folder / f"{sink}.raw"
        command = ["parec", f"--device={sink}.monitor", "--format=s16le", f"--rate={RATE}", "--channels=1", "--raw"]
        with path.open("wb") as file, subprocess.Popen(command, env=self._environment(), stdout=file) as recorder:
            try:
                yield path
            finally:
                recorder.terminate()


@contextmanager
def pulse(*, echo: bool = False) -> Iterator[Pulse]:
    """Start a server in a folder of its own; ended by its process id.

    Args:
        echo: Whether the microphone hears the speaker too, as in a room without a headset.
    """
    with tempfile.TemporaryDirectory(prefix="edgewise-pulse-") as made:
        folder = Path(made)
        server = Pulse(folder)
        command = [
            "pulseaudio",
            "-n",
            "--daemonize=no",
            "--exit-idle-time=-1",
            "--use-pid-file=no",
            "--disallow-exit",
            "--log-target=file:" + str(folder / "log"),
            f"--load=module-native-protocol-unix socket={folder}/native auth-anonymous=1",
            "--load=module-null-sink sink_name=speaker",
            "--load=module-null-sink sink_name=mouth",
            "--load=module-null-sink sink_name=room",
            f"--load=module-remap-source master={'room' if echo else 'mouth'}.monitor source_name=microphone",
            *(f"--load=module-loopback source={one}.monitor sink=room latency_msec=20" for one in ("mouth", "speaker")),
        ]
        process = subprocess.Popen(command, env={**os.environ, **server.environment}, stderr=subprocess.DEVNULL)
        try:
            ends = time.monotonic() + _START_S
            while not server.ready():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < ends, "PulseAudio did not come up"
                time.sleep(0.05)
            for kind, name in (("sink", "speaker"), ("source", "microphone")):
                subprocess.run(
                    ["pactl", f"set-default-{kind}", name], env={**os.environ, **server.environment}, check=True
                )
            yield server
        finally:
            process.terminate()
            process.wait(30)
