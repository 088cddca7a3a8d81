"""The pages in a real browser, over the double: what they show, that they stay current, and that everybody can use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.console.browser import Visitor, needs_chromium, visiting
from tests.e2e.console.child import Child
from tests.fakes.fleet_people import PASSWORD
from tests.fakes.fleet_services import FakeFleet

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

DEVICES = FakeFleet(200).devices.devices  # the double is made from a seed: the child process has the same
ONLINE = [device for device in DEVICES.values() if device.state == "online"]
UID = ONLINE[0].uid
PAGES = (
    "/",
    "/devices",
    "/models",
    "/rollouts",
    "/rollouts/new",
    "/alerts",
    "/audit",
    "/people",
    "/settings",
    "/nowhere-at-all",
)
LOOKED_AT_TWICE = ("/", "/devices", "/rollouts/new", f"/devices/{UID}/configuration")
TABS = ("", "/configuration", "/models", "/commands", "/chat", "/logs", "/receipts")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ada(browser: Browser, console: Child) -> AsyncIterator[Visitor]:
    async with visiting(browser, console.url) as visitor:
        await visitor.log_in("ada", PASSWORD)
        yield visitor


@pytest.mark.parametrize(("dark", "width"), [(False, 1440), (True, 390)], ids=["light, wide", "dark, narrow"])
async def test_every_page_can_be_used_by_everybody(browser: Browser, console: Child, dark: bool, width: int) -> None:
    """axe-core finds nothing wrong, and nothing is wider than the screen."""
    async with visiting(browser, console.url, dark=dark, width=width) as visitor:
        await visitor.page.goto(f"{console.url}/login")
        wrong = {"/login": await visitor.violations()}
        await visitor.log_in("ada", PASSWORD)
        for path in (*PAGES, *(f"/devices/{UID}{tab}" for tab in TABS)):
            await visitor.go(path)
            wrong[path] = await visitor.violations() if not dark or path in LOOKED_AT_TWICE else []
            wider = await visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            wrong[path] += [f"{wider} pixels wider than the screen"] if wider > 0 else []
            await visitor.shot(f"{path.strip('/').replace('/', '-').replace(UID, 'device') or 'overview'}-{width}")
        assert {path: found for path, found in wrong.items() if found} == {}


async def test_a_device_goes_offline_before_ones_eyes(ada: Visitor, console: Child) -> None:
    uid = ONLINE[1].uid
    await ada.go(f"/devices/{uid}")
    await ada.see("Online")
    console.tell(f"state {uid} offline")
    await ada.see("Offline")
    await ada.go("/devices?query=state:offline AND " + ONLINE[1].name)
    await ada.see("1 device")
    console.tell(f"state {uid} online")
    await ada.see("No device matches")


async def test_a_device_says_how_far_its_governor_goes_and_why(ada: Visitor, console: Child) -> None:
    uid = ONLINE[5].uid
    await ada.go(f"/devices/{uid}")
    now = ada.page.get_by_role("region", name="Now")
    await now.get_by_text("holds nothing back").wait_for()
    console.tell(f"heat {uid} 2 C are left to the limit of 85 C")
    await now.get_by_text("Hot", exact=True).wait_for()
    await now.get_by_text("Reason: 2 C are left to the limit of 85 C. A quarter of the places").wait_for()
    assert await ada.violations() == []
    await ada.shot("governor")


async def test_filter_sort_and_pages_are_the_servers(ada: Visitor) -> None:
    await ada.go("/devices")
    rows = ada.page.locator("table.data tbody tr")
    assert await rows.count() == 50
    await ada.see("1\u201350 of 200")
    await ada.press("Next")
    await ada.see("51\u2013100 of 200")
    await ada.page.get_by_label("Filter devices").fill("site:oslo")
    await ada.see("40 devices match")
    assert await rows.count() == 40
    names = ada.page.locator("table.data tbody tr td:nth-child(2)")
    await ada.press("Device")
    await ada.page.wait_for_url("**/devices?query=site%3Aoslo&sort=-name")
    await ada.page.locator("th[aria-sort=descending]").wait_for()
    last = max(device.name for device in DEVICES.values() if device.labels["site"] == "oslo")
    await names.first.get_by_text(last).wait_for()
    await ada.page.get_by_label("Filter devices").fill("site:")
    await ada.see('The query names "site" but no value')


async def test_an_action_shows_each_device_that_it_touches(ada: Visitor) -> None:
    await ada.go("/devices?query=site:graz AND state:offline")
    expected = sorted(d.name for d in DEVICES.values() if d.state == "offline" and d.labels["site"] == "graz")
    await ada.page.get_by_label("Select all rows of this page").check()
    await ada.see(f"{len(expected)} device")
    await ada.press("Restart")
    touched = ada.page.locator(".touched li")
    await touched.first.wait_for()
    assert sorted([(await one.locator("span").nth(1).text_content()) or "" for one in await touched.all()]) == expected
    assert await ada.violations() == []
    await ada.page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    await ada.page.wait_for_url("**/batches/*" if len(expected) > 1 else "**/commands/*")
    await ada.see("Queued")


async def test_the_search_is_a_key_away_and_everything_is_reached_by_keys(ada: Visitor) -> None:
    await ada.go("/")
    await ada.page.keyboard.press("Tab")
    assert await ada.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await ada.page.keyboard.press("/")
    await ada.page.keyboard.type("state:degraded")
    await ada.page.keyboard.press("Enter")
    await ada.page.wait_for_url("**/devices?query=state*")
    await ada.page.wait_for_function("window.did_handshake === true")
    await ada.page.keyboard.press("g")
    await ada.page.keyboard.press("l")
    await ada.page.wait_for_url("**/audit")
    await ada.page.wait_for_function("window.did_handshake === true")
    await ada.page.keyboard.press("?")
    await ada.page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    assert await ada.violations() == []
    await ada.page.keyboard.press("Escape")
    await ada.page.get_by_role("dialog").wait_for(state="hidden")
    await ada.page.keyboard.press("t")
    assert await ada.page.evaluate("document.documentElement.dataset.theme") == "dark"
    await ada.go("/alerts")
    assert await ada.page.evaluate("document.documentElement.dataset.theme") == "dark", "the choice lasts"


async def test_a_setting_is_changed_and_seen_in_force(ada: Visitor, console: Child) -> None:
    uid = ONLINE[2].uid
    await ada.go(f"/devices/{uid}/configuration")
    await ada.see("engine.max_batch: 16 needs 2.1 GiB more memory")
    await ada.page.get_by_role("region", name="Settings").get_by_role("button", name="Edit").click()
    editor = ada.page.get_by_label("Desired document")
    await editor.fill('{"placement.policy": ')
    await ada.press("Set")
    await ada.see("This is not JSON", "[role=dialog]")
    await editor.fill('{"placement.policy": "prefer-cloud"}')
    await ada.press("Show what changes")
    await ada.see("prefer-cloud", "[role=dialog] .diff")
    assert await ada.violations() == []
    await ada.press("Set")
    await ada.see("Pending")
    console.tell(f"apply {uid}")
    await ada.see("In force")


async def test_a_conversation_with_a_device(ada: Visitor) -> None:
    await ada.go(f"/devices/{ONLINE[3].uid}/chat")
    await ada.page.get_by_label("Message").fill("Good morning")
    await ada.page.get_by_label("Message").press("Enter")
    await ada.see("You said: Good morning Here all is well.")
    await ada.see("generate: local, first token after 180")
    assert await ada.violations() == []
    await ada.shot("chat")
    await ada.go(f"/devices/{ONLINE[3].uid}/receipts")
    await ada.see("generate: local")


async def test_a_conversation_is_there_again_until_it_is_cleared(
    ada: Visitor, browser: Browser, console: Child
) -> None:
    chat = f"/devices/{ONLINE[6].uid}/chat"
    await ada.go(chat)
    await ada.page.get_by_label("Message").fill("One")
    await ada.page.get_by_label("Message").press("Enter")
    await ada.see("One", ".say.mine")
    await ada.go("/")  # likely in the middle of the answer
    await ada.go(chat)
    await ada.see("You said: One Here all is well.")
    await ada.page.get_by_label("Message").fill("Two")
    await ada.page.get_by_label("Message").press("Enter")
    await ada.see("You said: Two Here all is well.")
    await ada.go(chat)
    assert await ada.page.locator(".say").count() == 4
    await ada.go(f"/devices/{ONLINE[7].uid}/chat")
    assert await ada.page.locator(".say").count() == 0, "another device's"
    async with visiting(browser, console.url) as other:
        await other.log_in("ada", PASSWORD)
        await other.go(chat)
        assert await other.page.locator(".say").count() == 0, "another login's"
    await ada.go(chat)
    await ada.press("Clear")
    await ada.see("Ask something.")
    await ada.go(chat)
    await ada.see("Ask something.")


async def test_a_rollout_from_the_form_to_its_end(ada: Visitor) -> None:
    await ada.go("/rollouts/new")
    await ada.page.get_by_label("Name", exact=True).fill("batch 4")
    await ada.page.get_by_label("Of", exact=True).select_option("config")
    await ada.page.wait_for_function("document.querySelector('textarea.code').value.includes('placement.policy')")
    await ada.page.get_by_label("Query", exact=True).fill("site:turku")
    await ada.see("40 devices now")
    await stages_by_share_and_by_query(ada)
    await ada.press("Review and start")
    await ada.see("40 devices will be touched", "[role=dialog]")
    ring = sorted(d.name for d in DEVICES.values() if d.labels["site"] == "turku" and d.labels["ring"] == "canary")
    named = ada.page.get_by_role("list", name="Devices of Stage 1: ring:canary").locator("li span:nth-child(2)")
    await named.nth(len(ring) - 1).wait_for()
    assert sorted(await named.all_text_contents()) == ring, "just those of the stage's query"
    assert await ada.violations() == []
    await ada.press("Keep as draft")
    await ada.page.wait_for_url("**/rollouts/r0*")
    await ada.page.get_by_text("Draft", exact=True).wait_for()
    await ada.press("Start")
    await ada.page.get_by_role("dialog").get_by_role("button", name="Start").click()
    await ada.see("agreement 0.41 is below 0.90")
    assert await ada.violations() == []
    await ada.shot("rollout")
    await ada.press("Pause")
    await ada.see("Paused")
    await ada.press("Roll back")
    await ada.page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await ada.see("Rolling back")


async def stages_by_share_and_by_query(ada: Visitor) -> None:
    """From the default of three shares to: a query after an approval, then everybody."""
    percent = ada.page.get_by_label("Percent", exact=True)
    await ada.see("8 devices now", ".stage-row:nth-child(2)")  # 25 % less the 5 % before
    await percent.nth(1).fill("3")
    await ada.press("Review and start")
    await ada.see("More than 5: shares count from the first device, so they rise.")
    await ada.page.get_by_role("button", name="Remove the stage").nth(1).click()
    await ada.page.get_by_label("Devices", exact=True).first.select_option("query")
    await ada.page.get_by_label("Stage query").first.fill("ring:canary")
    await ada.page.get_by_label("Deadline (min)").first.fill("")
    await ada.press("Review and start")
    await ada.see("A number of minutes.")
    await ada.page.get_by_label("Deadline (min)").first.fill("30")
    await ada.page.get_by_label("Wait for an approval before this stage").first.check()
    await ada.press("Add a stage")
    await ada.see("Stage 3")
    assert await ada.page.get_by_label("Devices", exact=True).first.input_value() == "query", (
        "what is shown is what is kept"
    )
    await ada.page.get_by_role("button", name="Remove the stage").nth(1).click()


async def test_alerts_are_seen_silenced_and_written(ada: Visitor) -> None:
    await ada.go("/alerts")
    await ada.page.get_by_role("button", name="Mark as seen").first.click()
    await ada.page.get_by_role("table", name="Alerts").get_by_text("ada").first.wait_for()
    await ada.page.get_by_role("button", name="Silence: offline").click()
    await ada.page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    await ada.see("Silenced")
    await ada.press("New rule")
    assert await ada.violations() == []
    await ada.page.get_by_label("Name", exact=True).fill("too hot")
    await ada.page.get_by_label("Bound").fill("85")
    await ada.press("Save")
    await ada.see("Temperature above 85\u00a0\u00b0C for 1")


async def test_several_alerts_are_seen_at_once_and_counted_on_every_page(ada: Visitor) -> None:
    total = sum(bool(device.alerts) for device in DEVICES.values())
    await ada.go("/models")
    await ada.see(f"{total} open", "nav[aria-label=Main]")
    await ada.go("/alerts")
    rows = ada.page.get_by_role("table", name="Alerts").locator("tbody tr")
    last = rows.filter(has=ada.page.get_by_role("button", name="Mark as seen"))
    before = await last.count()
    for n in range(2):
        await last.nth(n).get_by_role("checkbox").check()
    await ada.press("Mark these as seen")
    await ada.page.wait_for_function(
        "(n) => document.querySelectorAll('table.data button[aria-label^=\"Mark as seen\"]').length === n",
        arg=before - 2,
    )


async def test_a_filter_becomes_a_group_and_a_stage_can_be_of_it(ada: Visitor) -> None:
    await ada.go("/devices?query=ring:canary AND site:lyon")
    await ada.press("Groups")
    await ada.page.get_by_label("Name of a new group").fill("lyon-first")
    await ada.press("Save the group")
    dialog = ada.page.get_by_role("dialog", name="Groups")
    await dialog.get_by_role("link", name="lyon-first").wait_for()
    assert await ada.violations() == []
    await ada.press("Close")
    await ada.go("/rollouts/new")
    await ada.page.get_by_label("Devices", exact=True).first.select_option("group:lyon-first")
    await ada.go("/devices")
    await ada.page.get_by_label("Group", exact=True).select_option("ring:canary AND site:lyon")
    count = sum(d.labels["ring"] == "canary" and d.labels["site"] == "lyon" for d in DEVICES.values())
    await ada.see(f"{count} devices match")
    await ada.press("Groups")
    await ada.press("Delete: lyon-first")
    await ada.page.get_by_role("dialog", name="Delete the group").get_by_role("button", name="Delete").click()
    await dialog.get_by_role("link", name="lyon-first").wait_for(state="hidden")
    await ada.press("Close")


async def test_a_claim_code_is_shown_once_and_a_key_is_accepted(ada: Visitor) -> None:
    await ada.go("/people")
    await ada.press("Accept: dnew")
    await ada.see("No key waits for you")
    await ada.press("Make a claim code")
    await ada.page.get_by_label("A key for the cloud engine too").check()
    await ada.press("Make it")
    await ada.see("edgewise device enroll --fleet http://127.0.0.1:", "[role=dialog]")
    assert await ada.violations() == []
    await ada.press("Done")
    codes = ada.page.get_by_role("table", name="Claim codes").get_by_role("row", name="ada")
    assert "yes" in [cell.strip() for cell in await codes.get_by_role("cell").all_inner_texts()]
    await ada.press("Add a user")
    await ada.page.get_by_label("Name", exact=True).fill("ben")
    await ada.page.get_by_label("Password", exact=True).fill("short")
    await ada.press("Add")
    await ada.page.get_by_text("The password is shorter than 12 characters.").wait_for()
    await ada.page.get_by_label("Password", exact=True).fill("long enough for ben")
    await ada.press("Add")
    await ada.page.get_by_role("table", name="Users").get_by_text("ben").wait_for()


async def test_the_chain_is_verified(ada: Visitor) -> None:
    await ada.go("/audit")
    await ada.press("Verify the chain")
    await ada.see("The chain is whole")
    await ada.press("Older")
    await ada.see("Page 2")


async def test_a_viewer_is_offered_nothing_that_it_may_not_do(browser: Browser, console: Child) -> None:
    async with visiting(browser, console.url) as vera:
        await vera.log_in("vera", PASSWORD)
        for path, name in (
            (f"/devices/{UID}", "Restart"),
            ("/rollouts", "New rollout"),
            ("/people", "Make a claim code"),
        ):
            await vera.go(path)
            assert await vera.page.get_by_text(name, exact=True).count() == 0, path
        await vera.go("/")
        await vera.see("Needs attention")
        await vera.go("/audit")
        await vera.see("The audit log is not yours to read")
        await vera.go(f"/devices/{UID}/chat")
        await vera.see("Chat needs the role operator")


async def test_what_a_device_says_is_text_not_markup(ada: Visitor, console: Child) -> None:
    await ada.go(f"/devices/{ONLINE[4].uid}")
    await ada.press("Edit")
    evil = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>`${1}"
    await ada.page.get_by_label("Name", exact=True).fill(evil)
    await ada.press("Save")
    await ada.page.get_by_role("heading", name=evil).wait_for()
    await ada.go("/devices?query=" + ONLINE[4].uid)
    await ada.see(evil)
    assert "owned" not in await ada.page.title()


async def test_an_ended_session_ends_the_open_pages(browser: Browser, console: Child) -> None:
    async with visiting(browser, console.url) as visitor:
        await visitor.log_in("olu", PASSWORD)
        await visitor.go(f"/devices/{UID}/commands")
        console.tell("end-sessions")
        await asyncio.sleep(0.1)
        await visitor.press("Send")
        await visitor.page.wait_for_url("**/login?expired=1*")
        await visitor.page.get_by_text("Your session has ended. Log in again.").wait_for()
