"""A peer of the site as a place: a device, its cloud and another appliance as real processes, with a link to each that can be
searched. What is labelled `site` is answered by the peer, and no byte of it is on the way to the cloud."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.bench.link import Link
from scripts.service import CloudService
from tests.accept.cloud_4 import draw, encoder
from tests.e2e.pair import ONE_THREAD, TOKEN, Pair, paired, segments
from tests.e2e.service import edgewise, import_tiny, new_home


@dataclass
class Site:
    pair: Pair
    peer: CloudService
    link: Link

    def ask(self, prompt: str = "hello", *, label: str, policy: str = "prefer-peer", **fields: Any) -> Any:
        headers = {"x-edgewise-privacy": label, "x-edgewise-policy": policy}
        return self.pair.complete(prompt, headers=headers, **fields)

    def wait_peer(self) -> None:
        limit = time.monotonic() + 30
        while self.ask(label="site", max_tokens=1)["edgewise"]["stages"][0]["where"] != "peer":
            assert time.monotonic() < limit, "the peer is not planned with"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        home = stack.enter_context(new_home(starter=False))
        import_tiny(home)
        import_tiny(home, "heavy", seed=3)
        environment = {**ONE_THREAD, "EDGEWISE_INTAKE__SITE": "true"}
        peer = stack.enter_context(CloudService(home, ["--model", "tiny"], environment=environment))
        link = stack.enter_context(Link(peer.host, peer.port))
        pair = stack.enter_context(paired(PEERS__ENGINE=link.url, CLOUD__PATIENCE_S="1"))
        made = Site(pair, peer, link)
        made.wait_peer()
        yield made


def test_what_is_labelled_site_goes_to_the_peer_and_never_towards_the_cloud(site: Site) -> None:
    rng, encode = random.Random(7), encoder(site.pair)
    places = {}
    markers = {label: draw(rng, encode) for label in ("private", "site", "any")}
    for policy in ("prefer-peer", "prefer-cloud", "fastest"):
        for label, marker in markers.items():
            answer = site.ask(f"the word {marker.text} again", label=label, policy=policy, max_tokens=2)
            places[policy, label] = answer["edgewise"]["stages"][0]["where"]
    assert (places["prefer-peer", "site"], places["prefer-peer", "any"]) == ("peer", "peer")
    assert places["prefer-cloud", "any"] == "cloud"
    assert {places[policy, "private"] for policy, _ in places} == {"local"}
    assert "cloud" not in {places[policy, "site"] for policy, _ in places}
    to_cloud, to_peer = (
        b"".join(piece for way in ("up", "down") for piece in link.passed(way)) for link in (site.pair.link, site.link)
    )
    assert not markers["private"].seen(to_cloud)
    assert not markers["private"].seen(to_peer)
    assert not markers["site"].seen(to_cloud)
    assert markers["site"].seen(to_peer)
    assert markers["any"].seen(to_cloud)


def test_receipts_and_plans_say_peer(site: Site, tmp_path: Path) -> None:
    answer = site.ask(label="site")
    (stage,) = answer["edgewise"]["stages"]
    assert (stage["where"], segments(answer)) == ("peer", [("peer", 0)])
    assert answer["choices"] == site.ask(label="private")["choices"]  # the same words, wherever they are made
    url = site.pair.device.url
    found = httpx.get(f"{url}/edgewise/v1/receipts?where=peer&limit=1", timeout=30).json()["data"]
    assert found[0]["where"] == "peer"
    task = tmp_path / "task.json"
    task.write_text(json.dumps(site.pair.body()))
    asked = ("--privacy", "site", "--policy", "prefer-peer", "--url", url, "--json")
    told = json.loads(edgewise(site.pair.device_home, "plan", "--task", str(task), *asked))
    (planned,) = told["stages"]
    why = {one["where"]: (one["allowed"], one["why"]) for one in planned["candidates"]}
    assert planned["where"] == "peer"
    assert why["cloud"] == (False, "The request is labelled 'site', which keeps it from the cloud.")
    assert "peer_round_trip_ms" in told["measured"]


def test_a_model_that_only_the_peer_has_is_there_for_what_may_go_to_it(site: Site) -> None:
    url = site.pair.device.url
    cards = httpx.get(f"{url}/v1/models", timeout=30).json()["data"]
    assert {card["id"]: card["edgewise"]["where"] for card in cards}["heavy"] == "peer"
    body = {"model": "heavy", "prompt": "hello", "max_tokens": 4}
    for label, status in (("private", 503), ("site", 200)):
        answer = httpx.post(f"{url}/v1/completions", json=body, headers={"x-edgewise-privacy": label}, timeout=120)
        assert answer.status_code == status, answer.text
    assert answer.json()["edgewise"]["stages"][0]["where"] == "peer"


def test_a_peer_that_is_lost_in_the_middle_is_continued_here(site: Site) -> None:
    whole = site.ask(label="site")["choices"][0]["text"]
    cut = site.link.act_after(20, "cut", text=TOKEN)
    try:
        answer = site.ask(label="site")
    finally:
        site.link.restore()
    assert cut.is_set()
    assert answer["choices"][0]["text"] == whole
    assert [where for where, _ in segments(answer)] == ["peer", "local"]
    site.wait_peer()
