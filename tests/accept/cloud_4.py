"""What leaves the device, searched byte by byte: nothing of requests labelled private, everything of those labelled any.

A real device and a real cloud with a recording proxy between them, under a prefer-cloud policy. Every request has a random marker
of its own in its prompt. A prompt crosses the wire as token ids, so each marker is looked for as text, as base64 and as its token
ids in every form that a message here can have: JSON, CBOR, and integers of two and four bytes. That all markers of the other
requests are found by the same search shows that it finds what is there; at the end one marker is planted in each form.

Requests come over every text route, labelled by the header, by the key, and by the answer that they continue.
"""

from __future__ import annotations

import base64
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cbor2
import httpx

from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.pair import Pair, paired
from tests.e2e.service import edgewise

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ROUTES = (TEXT, CHAT, RESPONSES, MESSAGES)
LETTERS = "bcdfghjkmnpqrstvwxz"
MARKER = 24
EDGE = 2  # tokens at either end of a marker, which may have merged with their neighbours

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Marker:
    """A random text, and its token ids without those at its ends."""

    text: str
    ids: tuple[int, ...]

    def forms(self) -> dict[str, bytes]:
        """What it looks like on a wire."""
        text, ids = self.text.encode(), self.ids
        return {
            "text": text,
            "base64": base64.b64encode(text[: len(text) // 3 * 3]),
            "JSON": ",".join(map(str, ids)).encode(),
            "JSON with spaces": ", ".join(map(str, ids)).encode(),
            "CBOR": b"".join(map(cbor2.dumps, ids)),
            "two bytes": struct.pack(f"<{len(ids)}H", *ids),
            "four bytes": struct.pack(f"<{len(ids)}I", *ids),
        }

    def seen(self, traffic: bytes) -> list[str]:
        """The forms in which it is there."""
        return [name for name, form in self.forms().items() if form in traffic]


def draw(rng: random.Random, encode: Encode) -> Marker:
    text = "".join(rng.choice(LETTERS) for _ in range(MARKER))
    ids = tuple(encode(f" {text} "))[EDGE:-EDGE]
    if len(ids) < 6:
        raise AssertionError(f"the marker {text} has too few token ids to be told from other numbers: {ids}")
    return Marker(text, ids)


def body_of(route: str, text: str, previous: str | None) -> dict[str, Any]:
    prompt = f"the word {text} again"
    if route == TEXT:
        return {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    if route == RESPONSES:
        return {"model": "tiny", "input": prompt, "max_output_tokens": 2, "previous_response_id": previous}
    return {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}


class Asker:
    """Sends requests that are all private, or all not. Responses continue each other, three at a time."""

    def __init__(self, client: httpx.Client, keys: Mapping[str, str], label: str) -> None:
        self._client = client
        self._key = keys[label]
        self._label = label
        self._turns: dict[bool, list[str]] = {True: [], False: []}  # of a caller with the key, and without

    def ask(self, number: int, marker: Marker) -> list[str]:
        """Where the stages ran."""
        route = ROUTES[number % len(ROUTES)]
        keyed = number // len(ROUTES) % 2 == 1
        turns = self._turns[keyed]
        previous = turns[-1] if route == RESPONSES and turns else None
        headers = {"authorization": f"Bearer {self._key}"} if keyed else {"x-edgewise-privacy": self._label}
        if previous is not None:
            headers.pop("x-edgewise-privacy", None)  # it inherits its label
        answer = self._client.post(route, json=body_of(route, marker.text, previous), headers=headers)
        if answer.status_code != 200:
            raise AssertionError(f"{route}: {answer.status_code} {answer.text}")
        told = answer.json()
        if route == RESPONSES:
            self._turns[keyed] = [] if len(turns) == 2 else [*turns, told["id"]]
        if told["edgewise"]["privacy"] != self._label:
            raise AssertionError(f"{route}: labelled {told['edgewise']['privacy']!r}, not {self._label!r}")
        return [stage["where"] for stage in told["edgewise"]["stages"]]


def traffic(pair: Pair) -> bytes:
    """All that has passed, both ways."""
    return b"".join(piece for way in ("up", "down") for piece in pair.link.passed(way))


def missed_forms(pair: Pair, marker: Marker) -> list[str]:
    """Send one marker to the cloud in every form, each in a request of its own; the forms that the search does not find."""
    missed = []
    for name, form in marker.forms().items():
        httpx.post(f"{pair.link.url}/healthz", content=b"..." + form + b"...", timeout=30)
        missed += [] if _comes(pair, marker, name) else [name]
    return missed


def _comes(pair: Pair, marker: Marker, name: str) -> bool:
    """Whether a form is found, soon: an answer may overtake the body that it is given to."""
    limit = time.monotonic() + 20
    while name not in marker.seen(traffic(pair)):
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True


def new_key(pair: Pair, label: str) -> str:
    return edgewise(pair.device_home, "keys", "new", f"marked-{label}", "--privacy", label).strip()


def encoder(pair: Pair) -> Encode:
    return load_tokenizer(Store(pair.device_home / "models").resolve("tiny")).encode


def measure(count: int) -> Verdict:
    """`count` requests of each label, mixed."""
    rng = random.Random()
    with paired() as pair, httpx.Client(base_url=pair.device.url, timeout=120) as client:
        encode = encoder(pair)
        keys = {label: new_key(pair, label) for label in ("private", "any")}
        askers = {label: Asker(client, keys, label) for label in keys}
        markers: dict[str, list[Marker]] = {label: [] for label in keys}
        places: dict[str, list[str]] = {label: [] for label in keys}
        order = [label for label in keys for _ in range(count)]
        rng.shuffle(order)
        for number, label in enumerate(order):
            marker = draw(rng, encode)
            places[label] += askers[label].ask(len(markers[label]), marker)
            markers[label].append(marker)
            if number % 100 == 99:
                progress(f"{number + 1} of {2 * count} requests")
        passed = traffic(pair)
        leaked = [one.text for one in markers["private"] if one.seen(passed)]
        found = sum(bool(one.seen(passed)) for one in markers["any"])
        blind = missed_forms(pair, draw(rng, encode))
    right = not leaked and found == count and not blind and set(places["private"]) == {"local"}
    figure = f"{len(leaked)} of {count} private markers seen, {found} of {count} others; {len(passed)} bytes searched"
    return Verdict(
        figure=figure,
        passed=right,
        details={
            "leaked": leaked,
            "forms_not_found_when_planted": blind,
            "places": {label: sorted(set(ran)) for label, ran in places.items()},
        },
    )


LINE = Line(
    number=4,
    title="Requests labelled private under a prefer-cloud policy, each with a random marker, and as many labelled any: what of "
    "them crosses the link",
    bar="none of the private markers, all of the others",
    count=500,
    small=12,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_4")
