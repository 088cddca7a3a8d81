"""The link is cut in mid-answer, twice, at every tenth token: the answer is byte-equal to an uncut one, and each is billed once.

A device and a cloud as two real processes on a tiny model; every answer comes from the cloud over a link of our own, to the cloud
or to the broker that both are clients of (iotcore, and mosquitto where it is installed), with the default patience. The link is
slow enough that whoever reads the device's stream can cut it in time: when so many tokens have reached the client, and once more
some tokens later. Every connection breaks; new ones are taken after a moment. Whatever was cut less often, since its tokens came
together, must be equal too and is billed too, but is asked for once more.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import httpx

from edgewise.bench.link import LinkShape
from edgewise.core.settings_links import CloudSettings
from scripts.sse import events
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker, mosquitto_path
from tests.e2e.pair import Pair, paired

TOKENS = 200
OFFSETS = range(10, TOKENS - 10, 10)
APART = 50  # tokens between the two cuts: more than can be on their way behind the first
TRIES = 10  # at an answer that is cut twice
DARK_S = 0.1
SLOW = LinkShape(bits_per_s=64_000)
PROMPTS = 4
BROKERS: Mapping[str, Callable[[], AbstractContextManager[BrokerProcess]]] = {
    "iotcore": iotcore_broker,
    "mosquitto": mosquitto_broker,
}


@dataclass
class Answer:
    """What one stream brought.

    Attributes:
        cuts: Tokens that the client had when the link was cut.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)

    @property
    def segments(self) -> list[tuple[str, int]]:
        return [(one["where"], one["offset"]) for one in self.receipt["stages"][0]["segments"]]

    def same_as(self, other: Answer) -> bool:
        return (self.tokens, self.text) == (other.tokens, other.text)


def ask(pair: Pair, number: int, cut_at: tuple[int, ...] = (), cut: Callable[[], None] = lambda: None) -> Answer:
    """Stream an answer from the device; `cut` is called as soon as so many tokens have come."""
    body = pair.body(
        f"story {number % PROMPTS}",
        TOKENS,
        stream=True,
        ignore_eos=True,
        return_token_ids=True,
        temperature=0.9,
        stream_options={"include_usage": True},
    )
    answer, left = Answer(), list(cut_at)
    with httpx.stream("POST", f"{pair.device.url}/v1/completions", json=body, timeout=120) as response:
        response.raise_for_status()
        for event in events(response.iter_lines()):
            for choice in event["choices"]:
                answer.text += choice["text"]
                answer.tokens += choice.get("token_ids") or ()
            answer.receipt = event.get("edgewise") or answer.receipt
            if left and len(answer.tokens) >= left[0]:
                left.pop(0)
                answer.cuts.append(len(answer.tokens))
                cut()
    return answer


def offsets(count: int) -> Iterator[int]:
    """`count` of the offsets, spread evenly over all of them, and over and over if there are more trials."""
    for trial in range(count):
        yield OFFSETS[trial * len(OFFSETS) // count if count < len(OFFSETS) else trial % len(OFFSETS)]


def both_cuts(offset: int) -> tuple[int, int]:
    """At the offset and once more, before or after it."""
    return (offset, offset + APART) if offset + APART < TOKENS else (offset - APART, offset)


def fault(answer: Answer, uncut: Answer) -> str | None:
    """Why an answer is not right, however often it was cut and whoever made it."""
    return None if answer.same_as(uncut) else "differs from the uncut one"


def missed(answer: Answer, followed: int) -> str | None:
    """Why a trial was none, as happens where the machine is busy; `followed`: connections that were made after its beginning."""
    if answer.segments == [("local", 0)]:
        return "the device began itself, as the cloud did not take the job at once"
    if answer.segments != [("cloud", 0)]:
        return f"the device lost patience and went on itself: {answer.segments}"
    if len(answer.cuts) < 2 or followed < 2:
        return f"its tokens came together: it was cut at {answer.cuts}, and {followed} connections followed"
    return None


def ways() -> list[str]:
    """HTTP and every broker that is here."""
    return ["http", "iotcore", *(["mosquitto"] if mosquitto_path() else [])]


def over(way: str, count: int) -> dict[str, str]:
    """Trials over one way: what is wrong, by trial."""
    faults: dict[str, str] = {}
    with ExitStack() as stack:
        broker = stack.enter_context(BROKERS[way]()) if way in BROKERS else None
        pair = stack.enter_context(paired(broker=broker, CLOUD__PATIENCE_S=str(CloudSettings().patience_s)))
        uncut = [ask(pair, number) for number in range(min(PROMPTS, count))]
        before = billed(pair)
        pair.link.reshape(SLOW)
        made: Counter[str] = Counter()
        for number, offset in enumerate(offsets(count)):
            why = trial(pair, number, offset, uncut[number % PROMPTS], made)
            if why is not None:
                faults[f"{way}-{number}-at-{offset}"] = why
            progress(f"{way}: {number + 1} of {count}: {why or 'equal'}")
        bills = billed(pair) - before
    # What the device began itself the cloud may have got after all, and have ended or finished.
    whole, part = bills[TOKENS], sum(times for tokens, times in bills.items() if 1 < tokens < TOKENS)
    if whole < made["cloud"] or whole + part > made.total():
        faults[way] = (
            f"{dict(bills)} (tokens: times) was billed for answers of {TOKENS} tokens that were made {dict(made)}"
        )
    return faults


def trial(pair: Pair, number: int, offset: int, uncut: Answer, made: Counter[str]) -> str | None:
    """What is wrong with one answer that was cut twice; `made` counts who made what was asked for on the way to it."""

    def cut() -> None:
        pair.link.cut()
        time.sleep(DARK_S)
        pair.link.restore()

    why: str | None = None
    for _ in range(TRIES):
        pair.wait_link()
        connections = pair.link.connections
        answer = ask(pair, number, both_cuts(offset), cut)
        made["cloud" if answer.segments == [("cloud", 0)] else "local"] += 1
        if (wrong := fault(answer, uncut)) is not None:
            return wrong
        why = missed(answer, pair.link.connections - connections)
        if why is None:
            return None
        progress(f"at {offset} once more: {why}")
    return f"no trial of {TRIES} was cut twice; of the last: {why}"


def billed(pair: Pair) -> Counter[int]:
    """How many jobs of how many answered tokens were billed by the cloud."""
    with closing(sqlite3.connect(f"file:{pair.cloud.home / 'cloud.db'}?mode=ro", uri=True)) as db:
        return Counter(tokens for (tokens,) in db.execute("SELECT completion_tokens FROM usage"))


def measure(count: int) -> Verdict:
    """`count` streams over each way."""
    tried = ways()
    faults = {name: why for way in tried for name, why in over(way, count).items()}
    trials = len(tried) * count
    bad = len({name for name in faults if "-at-" in name})
    billing = "; ".join(why for name, why in faults.items() if "-at-" not in name) or "each billed once"
    figure = f"{trials - bad} of {trials} streams byte-equal after two cuts, over {', '.join(tried)}; {billing}"
    return Verdict(figure=figure, passed=not faults, details={"faults": faults})


LINE = Line(
    number=2,
    title="Link cut at every tenth offset of a 200-token stream, twice per stream, on both transports",
    bar="byte-equal to an uncut run, each request billed once",
    count=len(OFFSETS),
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_2")
