"""A real browser for tests of the console: Debian's chromium, headless."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Page, Request, async_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
LONG_MS = 30_000
"""For whatever a page must come to; this machine may be busy."""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless=new"])
        yield browser
        await browser.close()


class Visitor:
    """A person with a browser: `page` is open, `faults` is what went wrong in it, `outside` what it asked of other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.outside: set[str] = set()
        page.set_default_timeout(LONG_MS)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on(
            "console", lambda said: self.faults.append(said.text) if "Content Security Policy" in said.text else None
        )
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.outside.add(request.url)

    async def log_in(self, name: str, password: str) -> None:
        await self.page.goto(f"{self.url}/login")
        await self.page.fill("#name", name)
        await self.page.fill("#password", password)
        await self.page.click("button[type=submit]")
        await self.page.wait_for_selector("main h1")

    async def go(self, path: str) -> None:
        """To a page of the console; returns once it is drawn and its socket is open."""
        await self.page.goto(self.url + path)
        await self.page.wait_for_selector("main h1")
        await self.page.wait_for_function("window.did_handshake === true")

    async def see(self, text: str, where: str = "main") -> None:
        """Waits until this text is there."""
        await self.page.locator(where).get_by_text(text).first.wait_for()

    async def press(self, name: str) -> None:
        """The button or link of this name."""
        await self.page.get_by_role("button", name=name, exact=True).first.click()

    async def violations(self) -> list[str]:
        """What axe-core finds wrong with the page as it is now, once nothing moves or fades any more."""
        await self.page.wait_for_function("document.getAnimations().every((one) => one.playState !== 'running')")
        found: dict[str, Any] = (await Axe().run(self.page)).response
        return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]]

    async def shot(self, name: str) -> None:
        """A picture of the page, if a folder for artefacts is named; it is made."""
        folder = os.environ.get("EDGEWISE_TEST_ARTEFACTS")
        if folder:
            await self.page.screenshot(path=Path(folder) / f"console-{name}.png")


@asynccontextmanager
async def visiting(
    browser: Browser, url: str, *, dark: bool = False, width: int = 1440, height: int = 900
) -> AsyncIterator[Visitor]:
    """A browser of its own, without cookies; nothing may have gone wrong in it at the end."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    visitor = Visitor(await context.new_page(), url)
    try:
        yield visitor
    finally:
        await context.close()
    assert not visitor.faults
    assert not visitor.outside
