"""Device and cloud on two hosts with addresses of their own: the cable between them is out for a while, and for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from edgewise.security.keys import KeyStore
from scripts.service import CloudService, DeviceService
from scripts.sse import events
from tests.e2e.links.namespaces import NoNamespaces, TwoHosts, inside, two_hosts
from tests.e2e.pair import ONE_THREAD
from tests.e2e.service import import_tiny, new_home

TOKENS = 600  # a second or two: more than a client is behind
CUT_AT = 20
DARK_S = 2.0
PATIENCE_S = 10.0


@dataclass
class Answer:
    text: str = ""
    tokens: int = 0
    receipt: dict[str, Any] = field(default_factory=dict)

    @property
    def segments(self) -> list[tuple[str, int]]:
        return [(one["where"], one["offset"]) for one in self.receipt["stages"][0]["segments"]]


@dataclass
class Hosts:
    """Both hosts with their services; `ask` runs on the device's."""

    cable: TwoHosts
    ask: Callable[..., Answer]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            cable = stack.enter_context(two_hosts())
        except NoNamespaces as reason:
            pytest.skip(str(reason))
        homes = [stack.enter_context(new_home(starter=False)) for _ in range(2)]
        for home in homes:
            import_tiny(home, context=1024)
        with KeyStore(homes[1] / "keys.db") as keys:
            _, key = keys.create("device", ttl_s=3600.0)
        near, far = (stack.enter_context(inside(host)) for host in (cable.device, cable.cloud))
        cloud = CloudService(homes[1], ["--model", "tiny"], host=cable.cloud.address, environment=ONE_THREAD)
        stack.callback(lambda: far.submit(cloud.stop).result())
        far.submit(cloud.__enter__).result()
        settings = ONE_THREAD | {
            "EDGEWISE_CLOUD__URL": cloud.url,
            "EDGEWISE_CLOUD__KEY": key,
            "EDGEWISE_CLOUD__PATIENCE_S": str(PATIENCE_S),
            "EDGEWISE_PLACEMENT__POLICY": "prefer-cloud",
        }
        device = DeviceService(homes[0], ["--model", "tiny"], environment=settings)
        stack.callback(lambda: near.submit(device.stop).result())
        near.submit(device.__enter__).result()

        def ask_there(*args: Any, **fields: Any) -> Answer:
            return near.submit(ask, device, *args, **fields).result()

        limit = time.monotonic() + 120
        while ask_there(max_tokens=1).receipt["stages"][0]["where"] != "cloud":
            assert time.monotonic() < limit, "the device does not find the cloud"
            time.sleep(0.1)
        yield Hosts(cable, ask_there)


def ask(
    device: DeviceService,
    act: Callable[[], None] = lambda: None,
    *,
    privacy: str = "any",
    max_tokens: int = TOKENS,
) -> Answer:
    """Stream an answer; `act` is called in its midst."""
    body = {
        "model": "tiny",
        "prompt": "hello",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "seed": 5,
        "stream": True,
        "return_token_ids": True,
    }
    answer, acted = Answer(), False
    headers = {"X-Edgewise-Privacy": privacy}
    with httpx.stream("POST", f"{device.url}/v1/completions", json=body, headers=headers, timeout=120) as response:
        response.raise_for_status()
        for event in events(response.iter_lines()):
            for choice in event["choices"]:
                answer.text += choice["text"]
                answer.tokens += len(choice.get("token_ids") or ())
            answer.receipt = event.get("edgewise") or answer.receipt
            if not acted and answer.tokens >= CUT_AT:
                acted = True
                act()
    return answer


def test_an_answer_survives_a_cable_that_is_pulled_for_a_while_and_one_that_is_pulled_for_good(hosts: Hosts) -> None:
    undisturbed = hosts.ask(privacy="private")
    assert undisturbed.tokens == TOKENS
    whole = hosts.ask()
    assert (whole.text, whole.segments) == (undisturbed.text, [("cloud", 0)])

    def for_a_while() -> None:
        hosts.cable.pull()
        time.sleep(DARK_S)
        hosts.cable.plug()

    plugged = hosts.ask(for_a_while)
    assert (plugged.text, plugged.segments) == (undisturbed.text, [("cloud", 0)])
    assert plugged.receipt["total_ms"] > 1000 * DARK_S  # it was cut in its midst

    lost = hosts.ask(hosts.cable.pull)
    (where, offset), (then, at) = lost.segments
    assert (where, offset, then) == ("cloud", 0, "local")
    assert CUT_AT <= at < TOKENS
    assert lost.text == undisturbed.text
