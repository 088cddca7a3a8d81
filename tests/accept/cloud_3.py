"""The cloud is killed for good when the device has 37 tokens of an answer: the device's own engine says the rest.

The link is held at the proxy in the middle of the event that would bring token 37, so the device has exactly 37; then every
process of the cloud is killed and the link is cut. In one numeric class the text must be what one engine alone makes of the
request. One more trial has a device that computes in another class: there the continuation must be a valid one, and the receipt
must name both classes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.pair import Pair, paired

OFFSET = 37
TOKENS = 120
HEAD = b'"offset":%d,' % OFFSET
"""In an event that begins at this token; there is none where the tokens came together otherwise."""
SLOWER = {"hidden": 512, "layers": 8}
"""Sizes of the model: a token takes longer than the cloud's log needs to write one, so most are events of their own."""
RETRY_S = 240.0  # where a disk is slow, some still come together
SETTLE_S = 2.0  # until the device has taken in what crossed before
OTHER_CLASS: dict[str, Any] = {"DTYPE": "float32", "KV_DTYPE": "float32"}


def ask(pair: Pair, number: int, **fields: Any) -> dict[str, Any]:
    """An answer of the device, whole."""
    answer: dict[str, Any] = pair.complete(
        f"story {number}", max_tokens=TOKENS, ignore_eos=True, return_token_ids=True, temperature=0.9, **fields
    )
    return answer


def kill(pair: Pair) -> None:
    """Every process of the cloud, at once."""
    for pid in (pair.cloud.pid, *(child.pid for child in pair.cloud.children())):
        os.kill(pid, signal.SIGKILL)


def answers_with_a_dead_cloud(pair: Pair, number: int) -> dict[str, Any]:
    """The first answer whose events have a border at the offset; there the link is held and the cloud killed.

    Raises:
        RuntimeError: No answer had one.
    """
    held = pair.link.act_after(1, "hold", text=HEAD)
    with ThreadPoolExecutor(1) as pool:
        limit = time.monotonic() + RETRY_S
        while time.monotonic() < limit:
            coming = pool.submit(ask, pair, number)
            while not coming.done():
                if held.wait(0.005):
                    time.sleep(SETTLE_S)
                    kill(pair)
                    pair.link.cut()
                    pair.link.restore()  # of the hold too: what is asked anew finds nobody
                    return coming.result()
    raise RuntimeError(f"no answer within {RETRY_S:.0f} s had an event that begins at token {OFFSET}")


def segments(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["edgewise"]["stages"][0]["segments"]
    return found


def trial(number: int, **settings: Any) -> Iterator[str]:
    """What is wrong with one answer whose cloud is killed."""
    with paired(CLOUD__PATIENCE_S="1", tiny=SLOWER, **settings) as pair:
        alone = ask(
            pair, number, headers={"x-edgewise-privacy": "private"}
        )  # what is private is answered by the device alone
        cloud_alone = ask(pair, number)
        answer = answers_with_a_dead_cloud(pair, number)
    parts = segments(answer)
    if [part["reads"] for part in parts] != ["cloud from 0", f"local from {OFFSET}"]:
        yield f"the receipt reads {[part['reads'] for part in parts]}"
        return
    tokens = answer["choices"][0]["token_ids"]
    classes = [part["numeric_class"] for part in parts]
    progress(f"{number}: {[part['reads'] for part in parts]}, classes {classes}")
    if tokens[:OFFSET] != cloud_alone["choices"][0]["token_ids"][:OFFSET]:
        yield "what came from the cloud is not what it says undisturbed"
    if len(tokens) != TOKENS or answer["choices"][0]["finish_reason"] != "length":
        yield f"it ended after {len(tokens)} tokens with {answer['choices'][0]['finish_reason']}"
    if settings:
        if len({*classes}) != 2 or None in classes:
            yield f"the receipt names the classes {classes}"
    elif classes[0] != classes[1] or answer["choices"][0]["text"] != alone["choices"][0]["text"]:
        yield "the text is not what one engine alone says"


def measure(count: int) -> Verdict:
    """`count` answers in one numeric class, and one across two, for which alone there is no other test."""
    faults = {f"answer {number}": [*trial(number)] for number in range(count)}
    faults["across classes"] = [*trial(count, **OTHER_CLASS)]
    wrong = {name: why for name, why in faults.items() if why}
    figure = f"{len(faults) - len(wrong)} of {len(faults)} answers went on as 'local from {OFFSET}' and are right"
    return Verdict(figure=figure, passed=not wrong, details={"faults": wrong})


LINE = Line(
    number=3,
    title="Cloud killed for good at offset 37: the device continues",
    bar="receipt says local from 37; one class: the text of one engine alone; across classes: valid, and said",
    count=5,
    small=0,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_3")
