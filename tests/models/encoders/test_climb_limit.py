"""A climb that does not end gives its memory back."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from edgewise.models.encoders import rung
from edgewise.models.encoders.build import Order
from edgewise.models.encoders.rung import climb_beside
from edgewise.models.files import ModelFiles


def test_a_climb_that_hangs_is_ended_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(rung, "module_command", lambda module: hangs)
    monkeypatch.setattr(rung, "_LONGEST_S", 0.1)
    freed = threading.Event()
    files = ModelFiles(name="ear", digest="sha256:0", format="safetensors", paths={})
    order = Order(files=files, role="speech-to-text", samples=None, folder=tmp_path / "place", device="here", threads=1)
    climb_beside(order, 1000, lambda needed: freed.set, lambda record: pytest.fail("nothing was found"))
    assert freed.wait(60)
    (told,) = [record for record in caplog.records if record.message == "encoder_climb_failed"]
    assert vars(told)["edgewise_fields"]["reason"] == "it took more than 0.1 s"
