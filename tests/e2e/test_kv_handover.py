"""KV pages between real services on loopback addresses, which stand for appliances of one network.

The taking one computes in small steps, which makes its prompts slow and so the link worth it.
"""

from __future__ import annotations

import http.server
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgewise.bench.link import Link, LinkShape
from edgewise.models.gate_record import FormatRecord, GateRecord, write_record
from edgewise.wire.codec import decode, encode_cbor
from edgewise.wire.pages import LOOKUP, PAGES, PageQuery, pack_pages, split
from scripts.service import CloudService, DeviceService
from tests.e2e.service import edgewise, import_tiny, new_home, running

# Pages are fetched where computing them takes longer: native kernels are faster than the fetching here.
COMMON = {
    "EDGEWISE_ENGINE__KERNELS": "reference",
    "EDGEWISE_ENGINE__THREADS": "1",
    "EDGEWISE_ENGINE__KV_MEMORY_BYTES": "16 MiB",
}
SLOW = {"EDGEWISE_ENGINE__MAX_STEP_TOKENS": "8", "EDGEWISE_PEERS__MIN_TOKENS": "256"}
PATIENCE_S = 240.0
ABOUT_BYTES = 2048  # of a token of float32 pages
WORDS = "the harbour master counts ships and writes their names into a long book before the tide turns "

pytestmark = pytest.mark.timeout(900)  # some patiences, which idle machines need none of


def ask(service: DeviceService, text: str, key: str | None = None, **headers: str) -> tuple[str, dict[str, Any]]:
    """The answer and its receipt's stage; the receipt's warnings are put into the stage."""
    body = {"model": "tiny", "prompt": text + WORDS * 12, "max_tokens": 12, "temperature": 0.8, "seed": 7}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    answer = httpx.post(f"{service.url}/v1/completions", json=body, headers=headers, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    (stage,) = document["edgewise"]["stages"]
    return document["choices"][0]["text"], {**stage, "warnings": document["edgewise"]["warnings"]}


def outcomes(service: DeviceService) -> dict[str, int]:
    """What came of the hand-overs so far, but for those that never began."""
    prefix = 'edgewise_kv_handovers_total{outcome="'
    lines = httpx.get(f"{service.url}/metrics", timeout=30, trust_env=False).text.splitlines()
    counts = {
        line.removeprefix(prefix).split('"')[0]: int(float(line.split()[-1]))
        for line in lines
        if line.startswith(prefix)
    }
    counts.pop("unreachable", None)  # asked again now and then
    return counts


@contextmanager
def sharing(home: Path) -> Iterator[Path]:
    """Another state directory with the same models."""
    with new_home(starter=False) as other:
        (other / "models").symlink_to(home / "models")
        yield other


@contextmanager
def taking(home: Path, *urls: str, **settings: str) -> Iterator[DeviceService]:
    """One that asks these peers, and has measured its pace already."""
    environment = {**COMMON, **SLOW, "EDGEWISE_PEERS__URLS": ",".join(urls), **settings}
    with sharing(home) as own, running(model="tiny", home=own, environment=environment) as taker:
        ask(taker, "a first prompt, by which the pace is measured: ")
        yield taker


class Meddler(http.server.ThreadingHTTPServer):
    """A test double of a bad peer: passes everything on to a real one, and changes the answers that carry pages.

    Attributes:
        changed: How many it has changed.
    """

    def __init__(self, giver: DeviceService, change: Callable[[bytes, bytes], bytes]) -> None:
        """`change` takes the query and the answer."""
        meddler = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = self.rfile.read(int(self.headers["content-length"]))
                headers = {"content-type": self.headers["content-type"]}
                url = giver.url + self.path
                answer = httpx.post(url, content=query, headers=headers, timeout=30, trust_env=False)
                body = answer.content
                if self.path == PAGES:
                    body = change(query, body)
                    meddler.changed += 1
                self.send_response(answer.status_code)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.changed = 0
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Meddler:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def flip(query: bytes, answer: bytes) -> bytes:
    """One bit of the last page."""
    del query
    return answer[:-100] + bytes([answer[-100] ^ 1]) + answer[-99:]


def lie(query: bytes, answer: bytes) -> bytes:
    """Each page's content under the name of the one before, with digests that are right."""
    names = split(PageQuery.model_validate(decode(query)).names)
    count, size = int.from_bytes(answer[6:8], "big"), int.from_bytes(answer[8:12], "big")
    contents = [answer[-size * (count - index) :][:size] for index in range(count)]
    return pack_pages(names[:count], [*contents[1:], contents[0]])


def poison(query: bytes, answer: bytes) -> bytes:
    """Pages of what is no number, with digests that are right."""
    names = split(PageQuery.model_validate(decode(query)).names)
    count, size = int.from_bytes(answer[6:8], "big"), int.from_bytes(answer[8:12], "big")
    return pack_pages(names[:count], [b"\xff" * size] * count)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home(starter=False) as folder:
        import_tiny(folder, context=4096, layers=4, hidden=128)
        yield folder


@pytest.fixture(scope="module")
def giver(home: Path) -> Iterator[DeviceService]:
    """A cloud engine; the taking ones are devices."""
    environment = {**COMMON, "EDGEWISE_PEERS__SERVE": "true"}
    with CloudService(home, ["--model", "tiny"], environment=environment) as service:
        yield service


def new_key(home: Path, name: str) -> str:
    return str(json.loads(edgewise(home, "keys", "new", name, "--json"))["key"])


def doubts(stage: Mapping[str, Any]) -> list[str]:
    """Warnings that tell of a hand-over in vain; a random model's answer may also end inside a character."""
    return [warning for warning in stage["warnings"] if "Another appliance" in warning]


def new_part(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was added to `outcomes`, but for peers that were found slow and so not asked."""
    grown = {word: after[word] - before.get(word, 0) for word in after if word != "slow"}
    return {word: count for word, count in grown.items() if count}


def handed(
    giver: DeviceService, taker: DeviceService, about: str, theirs: str | None = None, ours: str | None = None
) -> str:
    """Ask both for new prompts until pages of one were handed over; that prompt.

    A peer that is late, as any may be on a busy machine, is left alone for a while: then the next one is asked.
    """
    limit = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        prompt = f"{about} {number} "
        expected, first = ask(giver, prompt, theirs)
        text, stage = ask(taker, prompt, ours)
        assert (text, first["cached_tokens"]) == (expected, 0)
        if stage["handed_tokens"] > 500:
            assert stage["handed_tokens"] == stage["restored_tokens"] == stage["cached_tokens"]
            assert doubts(stage) == []
            return prompt
        assert time.monotonic() < limit, (stage, outcomes(taker))
        time.sleep(1)
    raise AssertionError


def test_an_appliance_goes_on_where_another_one_was_asked(home: Path, giver: DeviceService) -> None:
    theirs = new_key(home, "alice")
    (home / "alice").write_text(theirs)
    with sharing(home) as own, ExitStack() as stack:
        links = [stack.enter_context(Link(giver.host, giver.port)) for _ in range(3)]
        ours, stranger = new_key(own, "alice"), new_key(own, "bob")
        settings = {
            **COMMON,
            **SLOW,
            "EDGEWISE_PEERS__URLS": ",".join(link.url for link in links),
            "EDGEWISE_PEERS__KEYS": f"{ours.split('_')[1]}={home / 'alice'}",
        }
        with running(model="tiny", home=own, environment=settings) as taker:
            ask(taker, "a first prompt, by which the pace is measured: ")
            _same_answer_without_a_prefill(giver, taker, links)
            _labels(giver, taker)
            _tenants(giver, taker, theirs, ours, stranger)


def _same_answer_without_a_prefill(giver: DeviceService, taker: DeviceService, links: Sequence[Link]) -> None:
    prompt = handed(giver, taker, "once")
    assert outcomes(taker)["used"] == 1
    assert not any(link.saw(b"harbour") for link in links)
    assert ask(taker, prompt)[1]["handed_tokens"] == 0  # its own by now


def _labels(giver: DeviceService, taker: DeviceService) -> None:
    before = outcomes(taker)
    private = {"X-Edgewise-Privacy": "private"}
    expected, _ = ask(giver, "twice ", **private)
    text, stage = ask(taker, "twice ")
    assert (text, stage["handed_tokens"]) == (expected, 0)
    ask(giver, "thrice ")
    assert ask(taker, "thrice ", **private)[1]["handed_tokens"] == 0
    assert outcomes(taker) == before
    handed(giver, taker, "labelled nothing")  # it could have been


def _tenants(giver: DeviceService, taker: DeviceService, theirs: str, ours: str, stranger: str) -> None:
    expected, _ = ask(giver, "of alice ", theirs)
    for key in (None, stranger):
        text, stage = ask(taker, "of alice ", key)
        assert (text, stage["handed_tokens"]) == (expected, 0)
    handed(giver, taker, "of alice", theirs, ours)


def test_whatever_is_in_doubt_is_computed(home: Path, giver: DeviceService) -> None:
    """Each fault costs one prompt's time and its peer the trust: a later prompt asks the next one."""
    with ExitStack() as stack:
        bad = [stack.enter_context(Meddler(giver, change)) for change in (flip, lie, poison)]
        broken = stack.enter_context(Link(giver.host, giver.port))
        slow = stack.enter_context(Link(giver.host, giver.port, LinkShape(bits_per_s=300_000)))
        dead = "http://127.0.0.1:9"
        urls = [dead, *(one.url for one in bad), broken.url, slow.url, giver.url]
        taker = stack.enter_context(taking(home, *urls))
        fired = broken.act_after(100_000, "cut")
        limit = time.monotonic() + PATIENCE_S
        seen: Counter[str] = Counter()
        for number in itertools.count():
            if seen["damaged"] and seen["disagreed"] >= 2 and seen["late"] and seen["used"] and fired.is_set():
                break
            assert time.monotonic() < limit, (seen, [one.changed for one in bad], fired.is_set())
            if number > 6:  # one was late where it was to be something else, and is left alone for a while
                time.sleep(1)
            seen.update(_one_in_doubt(giver, taker, bad, f"prompt {number} "))
        events = httpx.get(f"{taker.url}/edgewise/v1/events", timeout=30, trust_env=False).text
        assert "kv_handover_refused" in events


def _one_in_doubt(giver: DeviceService, taker: DeviceService, bad: Sequence[Meddler], prompt: str) -> dict[str, int]:
    """Ask both; the answer must be right whatever came of it, which is returned."""
    before, meddled = outcomes(taker), sum(one.changed for one in bad)
    expected, _ = ask(giver, prompt)
    text, stage = ask(taker, prompt)
    came = new_part(before, outcomes(taker))
    assert text == expected
    assert sum(came.values()) <= 1
    assert bool(stage["handed_tokens"]) is ("used" in came), (came, stage)
    assert bool(doubts(stage)) is (bool(came) and "used" not in came), (came, stage)
    if sum(one.changed for one in bad) > meddled:
        assert "used" not in came
    return came


def _pass_gate(store: Path, service: DeviceService) -> None:
    """A record as a gate would leave it: the gate itself needs a model that has learnt something."""
    (card,) = httpx.get(f"{service.url}/v1/models", trust_env=False).json()["data"]
    figures = {"mean_kl": 0.003, "max_kl": 0.1, "agreement": 0.95, "perplexity": 9.0, "needles": 0}
    passed = FormatRecord(kind="handover", name="int4", **figures, capacity=2.9, bound=0.01, passed=True)  # type: ignore[arg-type]
    record = GateRecord(
        model="tiny", digest=card["edgewise"]["digest"], measured_at="2026-11-30T00:00:00+00:00", text_sha256="0" * 64,
        positions=64, needle_lengths=(), needles=0, perplexity=9.0, needles_found=0, formats=(passed,),
    )  # fmt: skip
    write_record(store, record)


def test_over_a_link_too_slow_for_exact_pages_rounded_ones_come_where_the_gate_has_passed_them(home: Path) -> None:
    """The speed of the link is set between the two break-evens, by the pace that the taker has just shown; where a busy machine
    made that wrong, it is searched, over a new link each time, since a device remembers how slow one was."""
    wide = {**COMMON, "EDGEWISE_KV_DTYPE": "float32"}
    with ExitStack() as stack:
        own = stack.enter_context(sharing(home))
        settings = {**wide, "EDGEWISE_PEERS__SERVE": "true"}
        giver = stack.enter_context(CloudService(own, ["--model", "tiny"], environment=settings))
        links = [stack.enter_context(Link(giver.host, giver.port)) for _ in range(12)]
        urls = ",".join(link.url for link in links)
        settings = {**wide, **SLOW, "EDGEWISE_PEERS__URLS": urls, "EDGEWISE_PEERS__INT4": "true"}
        taker = stack.enter_context(
            running(model="tiny", home=stack.enter_context(sharing(home)), environment=settings)
        )
        _, stage = ask(taker, "a first prompt, by which the pace is measured: " + WORDS * 12)
        share = 0.4  # of the exact pages crosses the link while the prompt is computed
        (home / "models" / "gates").mkdir(exist_ok=True)
        for number in range(len(links)):
            if number == 1:  # until then nothing was measured, and no rounded page may come
                assert stage["handed_form"] != "int4"
                _pass_gate(home / "models", taker)
            prompt = f"{number} " + WORDS * 12
            shape = LinkShape(
                bits_per_s=share * 8 * ABOUT_BYTES * len(prompt + WORDS * 12) / 4 / (stage["prefill_ms"] / 1000)
            )
            for link in links:
                link.reshape(shape)
            ask(giver, prompt)
            text, told = ask(taker, prompt)
            if told["handed_form"] == "int4":
                break
            if told["handed_tokens"] == 0:
                stage = told
            share *= 1.3 if told["handed_tokens"] == 0 else 0.7
        assert told["handed_form"] == "int4", outcomes(taker)
        assert told["handed_tokens"] == told["cached_tokens"] >= 256
        assert told["handed_bytes"] < told["handed_tokens"] * ABOUT_BYTES / 2
        assert any("rounded to 4 bits" in warning for warning in told["warnings"])
        again, told = ask(taker, prompt)
        assert (again, told["handed_tokens"], told["handed_form"]) == (
            text,
            0,
            "int4",
        )  # its own by now, and said again


def test_only_well_formed_queries_for_the_same_pages_are_answered(home: Path, giver: DeviceService) -> None:
    del home
    (card,) = httpx.get(f"{giver.url}/v1/models", trust_env=False).json()["data"]

    def post(path: str, query: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(giver.url + path, content=encode_cbor(dict(query)), trust_env=False)

    query = {"digest": card["edgewise"]["digest"], "fingerprint": "0" * 64, "names": bytes(64)}
    offer = decode(post(LOOKUP, query).content)
    assert (offer["same"], offer["count"]) == (False, 0)
    assert post(PAGES, query).status_code == 503
    assert decode(post(LOOKUP, {**query, "digest": "sha256:" + "0" * 64}).content)["same"] is False
    for change in ({"names": bytes(33)}, {"names": bytes(2**20)}, {"digest": "x"}, {"fingerprint": "é" * 64}):
        assert post(LOOKUP, {**query, **change}).status_code in (400, 413)
    assert httpx.post(giver.url + LOOKUP, content=b"\x00", trust_env=False).status_code == 400
