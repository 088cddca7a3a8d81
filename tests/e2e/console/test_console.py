"""The console on the real fleet service: a device from its claim code to its last breath, as a person sees it in a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec
from playwright.async_api import Browser

from edgewise.edge.enrol.client import make_csr
from edgewise.wire.fleet import Command, Enrolled, EnrolPoll, EnrolRequest, ModelState
from tests.e2e.console.browser import LONG_MS, Visitor, chromium, needs_chromium, visiting
from tests.e2e.console.child import Child, child
from tests.e2e.console.serve import NAME, PASSWORD
from tests.fakes.fleet_device import FleetDevice

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with child("tests.e2e.console.serve", str(tmp_path_factory.mktemp("fleet"))) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ada(browser: Browser, fleet: Child) -> AsyncIterator[Visitor]:
    async with visiting(browser, fleet.url) as visitor:
        await visitor.log_in(NAME, PASSWORD)
        yield visitor


class Newcomer:
    """A device that asks to join: its key is its own."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._csr = make_csr(ec.generate_private_key(ec.SECP256R1()))
        self.answer = Enrolled(state="pending")

    async def _post(self, path: str, body: EnrolRequest | EnrolPoll) -> Enrolled:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            response = await client.post(path, json=body.model_dump(mode="json"))
            assert response.status_code == 200, response.text
            return Enrolled.model_validate(response.json())

    async def enrol(self, code: str) -> str:
        """Its state after asking."""
        self.answer = await self._post("/fleet/v1/enrol", EnrolRequest(code=code, csr=self._csr, name=self._name))
        return self.answer.state

    async def accepted(self) -> str:
        """Its name in topics, once somebody has accepted it."""
        ticket = self.answer.ticket
        while self.answer.state != "accepted":
            self.answer = await self._post("/fleet/v1/enrol/status", EnrolPoll(ticket=ticket))
            await asyncio.sleep(0.05)
        return self.answer.uid


async def answer(device: FleetDevice, id: str, command: Command) -> None:
    """`infer`, in three pieces."""
    await device.ack(id, "accepted")
    pieces = ["Press 4 ", "runs ", "well."]
    for offset, piece in enumerate(pieces):
        await device.piece(id, offset, piece)
    receipt = {"stages": [{"stage": "generate", "where": "local", "ttft_ms": 120.0, "tokens_per_s": 33.0}]}
    message = {"role": "assistant", "content": "".join(pieces)}
    result = {"choices": [{"message": message}], "usage": {"completion_tokens": 5}, "edgewise": receipt}
    await device.ack(id, "succeeded", result=result)


async def send_log(device: FleetDevice, id: str, _: Command) -> None:
    await device.ack(id, "accepted")
    await device.log_part(id, 0, ("first line", "second line"), last=True)
    await device.ack(id, "succeeded", result={"lines": 2, "parts": 1})


def refuse_big(_: str, document: dict[str, Any]) -> str | None:
    return "engine.max_batch: 64 needs 9 GiB more memory" if document.get("engine.max_batch") == 64 else None


@asynccontextmanager
async def device_of(fleet: Child, folder: Path, uid: str) -> AsyncIterator[FleetDevice]:
    models = (ModelState(name="smollm2-135m", role="llm", bytes=270_000_000, loaded=True),)
    device = FleetDevice(
        uid, int(fleet.first[1]), folder, acts={"infer": answer, "logs": send_log}, apply=refuse_big, models=models
    )
    await device.start()
    try:
        yield device
    finally:
        await device.stop()


async def join(ada: Visitor, fleet: Child) -> str:
    """A claim code is made, a device uses it, a person accepts it."""
    await ada.go("/")
    await ada.see("No device yet")
    await ada.page.get_by_role("link", name="Make a claim code").click()
    await ada.press("Make a claim code")
    await ada.press("Make it")
    said = await ada.page.locator("code.secret").text_content()
    assert said is not None
    newcomer = Newcomer(fleet.url, "press-4")
    assert await newcomer.enrol(said.rpartition(" ")[2]) == "pending"
    await ada.press("Done")
    await ada.see("Waits for you")
    await ada.shot("e2e-keys")
    await ada.page.get_by_role("button", name="Accept: ").click()
    await ada.see("No key waits for you")
    return await newcomer.accepted()


async def test_a_device_from_its_claim_code_to_its_last_breath(ada: Visitor, fleet: Child, tmp_path: Path) -> None:
    uid = await join(ada, fleet)
    await ada.go(f"/devices/{uid}")
    await ada.see("Never seen")
    async with device_of(fleet, tmp_path, uid) as device:
        await ada.see("Online")
        await device.telemetry({"tokens_per_s": 33.5, "memory_used": 4.0 * 2**30, "memory_total": 8.0 * 2**30})
        await ada.go("/devices?query=model:smollm2-135m AND state:online")
        await ada.see("33.5")
        await ada.go(f"/devices/{uid}")
        await ada.see("4.0\u00a0GiB")
        await ada.shot("e2e-device")
        await change_a_setting(ada, uid)
        await run_a_command(ada, uid)
        await read_the_log(ada, uid)
        await talk(ada, uid)
        await roll_out_what_is_refused(ada, uid)
        await ada.go(f"/devices/{uid}")
        await device.cut()
        await ada.see("Offline")
        await ada.shot("e2e-offline")
        await device.start()
        await ada.see("Online")
    await ada.go("/audit")
    await ada.press("Verify the chain")
    await ada.see("The chain is whole")
    await ada.shot("e2e-audit")
    assert await ada.violations() == []


async def change_a_setting(ada: Visitor, uid: str) -> None:
    await ada.go(f"/devices/{uid}/configuration")
    settings = ada.page.get_by_role("region", name="Settings")
    await settings.get_by_role("button", name="Edit").click()
    await ada.page.get_by_label("Desired document").fill('{"engine.max_batch": 8}')
    await ada.press("Set")
    await settings.get_by_text("In force", exact=True).first.wait_for()
    await settings.get_by_role("button", name="Edit").click()
    await ada.page.get_by_label("Desired document").fill('{"engine.max_batch": 64}')
    await ada.press("Set")
    await settings.get_by_text("engine.max_batch: 64 needs 9 GiB more memory").first.wait_for()
    await ada.shot("e2e-configuration")
    await settings.get_by_role("button", name="Edit").click()
    await ada.page.get_by_label("Desired document").fill('{"engine.max_batch": 16}')
    await ada.press("Set")
    await settings.get_by_text("In force", exact=True).first.wait_for()


async def run_a_command(ada: Visitor, uid: str) -> None:
    await ada.go(f"/devices/{uid}")
    await ada.press("Ping")
    await ada.see("press-4", ".touched")
    await ada.page.get_by_role("dialog").get_by_role("button", name="Ping").click()
    await ada.page.wait_for_url("**/commands/*")
    await ada.see("Succeeded")
    await ada.see("working 50 %")


async def read_the_log(ada: Visitor, uid: str) -> None:
    await ada.go(f"/devices/{uid}/logs")
    await ada.press("Fetch")
    await ada.see("second line", ".log")


async def talk(ada: Visitor, uid: str) -> None:
    await ada.go(f"/devices/{uid}/chat")
    await ada.page.get_by_label("Message").fill("How does press 4 run?")
    await ada.page.get_by_label("Message").press("Enter")
    await ada.see("Press 4 runs well.")
    await ada.see("5 tokens \u00b7 generate: local")
    await ada.shot("e2e-chat")


async def roll_out_what_is_refused(ada: Visitor, uid: str) -> None:
    """It fails its gate on the device, and is undone without a hand on it."""
    await ada.go("/rollouts/new")
    await ada.page.get_by_label("Name", exact=True).fill("big batches")
    await ada.page.get_by_label("Of", exact=True).select_option("config")
    await ada.page.wait_for_function("document.querySelector('textarea.code').value.includes('placement.policy')")
    await ada.page.get_by_label("Document").fill('{"engine.max_batch": 64}')
    await ada.page.get_by_label("Query", exact=True).fill(f"uid:{uid}")
    await ada.see("1 device now")
    for _ in range(2):  # 5, 25 and 100 % become everybody at once
        await ada.page.get_by_role("button", name="Remove the stage").first.click()
    await ada.press("Review and start")
    await ada.see("press-4", ".touched")
    await ada.page.get_by_role("dialog").get_by_role("button", name="Start").click()
    await ada.page.wait_for_url("**/rollouts/*")
    await ada.page.get_by_text("Rolled back", exact=True).first.wait_for(timeout=3 * LONG_MS)
    await ada.see("engine.max_batch: 64 needs 9 GiB more memory")
    await ada.shot("e2e-rollout")
