"""The console over the double of the fleet's services, in a process of its own, and a browser to look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.console.browser import chromium
from tests.e2e.console.child import Child, child


@pytest.fixture(scope="module")
def console() -> Iterator[Child]:
    with child("tests.fakes.fleet_console", "0", "200") as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened
