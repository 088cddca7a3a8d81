"""A store with the voices of the catalog, pulled once into the tests' cache."""

from __future__ import annotations

import fcntl
from pathlib import Path

from tests.e2e.service import PULL_TIMEOUT_S, cache_dir, edgewise

VOICES = ("kokoro", "piper-joe")


def voice_store() -> Path:
    """For reading; pulled by the command on first use."""
    home = cache_dir() / "speech"
    home.mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "speech.lock").open("w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in VOICES:
            edgewise(home, "models", "pull", name, timeout_s=PULL_TIMEOUT_S)
    return home / "models"
