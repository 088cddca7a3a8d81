"""One real service with the starter model for all tests of a process that only ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.service import DeviceService
from tests.e2e.client import Client
from tests.e2e.service import STARTER, running


@pytest.fixture(scope="session")
def service() -> Iterator[DeviceService]:
    with running(model="starter") as started:
        yield started


@pytest.fixture
def client(service: DeviceService) -> Iterator[Client]:
    with Client(service.url, model=STARTER) as opened:
        yield opened
