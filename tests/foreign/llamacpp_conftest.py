"""Placed beside llama.cpp's server tests: their server object talks to a running service instead of starting a process."""

from __future__ import annotations

import os

import pytest
import utils

HOST, PORT = os.environ["EDGEWISE_TEST_RELAY"].split(":")


def _start(self: utils.ServerProcess, timeout_seconds: int = 0) -> None:
    """The relay is there already; what the test asks of the process (templates, slots, files) does not reach it."""
    self.server_host, self.server_port = HOST, int(PORT)


utils.ServerProcess.start = _start
utils.ServerProcess.stop = lambda self: None
utils.ServerPreset.load_all = staticmethod(lambda: None)


@pytest.fixture(autouse=True)
def _own_server() -> None:
    os.environ.pop("PORT", None)
