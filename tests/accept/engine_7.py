"""Two models, memory for one: while one writes, the other is asked. Answers are intact, or the refusal says when to retry."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from scripts.service import DeviceService, is_engine
from scripts.sse import events
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.service import import_tiny, new_home, running

NAMES = ("anna", "bruno")
CONTEXT = 1024
LONGEST = 500
WAIT_S = 2.0  # shorter than the longest answers take, so that both outcomes are met
BOUND_S = 60.0
WARM_UP = 6
MAX_GROWTH = 0.10
MODEL: dict[str, Any] = {"context": CONTEXT, "hidden": 64, "layers": 4}
SETTINGS = {
    "EDGEWISE_ENGINE__MEMORY_BUDGET_BYTES": "240 MiB",
    "EDGEWISE_ENGINE__KERNELS": "reference",  # whose scratch memory makes it enough for one model and too little for two
    "EDGEWISE_POOL__PIN_MODEL": "false",
    "EDGEWISE_POOL__WAIT_S": str(WAIT_S),
}


def body(model: str, tokens: int, **fields: Any) -> dict[str, Any]:
    """A request whose first `tokens` tokens are the same however many are asked for."""
    return {
        "model": model,
        "prompt": f"The log of {model}:",
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": 7,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def whole(http: httpx.Client, model: str, tokens: int) -> tuple[int, list[int], str]:
    """(status, token ids, Retry-After) of an answer in one piece."""
    response = http.post("/v1/completions", json=body(model, tokens))
    if response.is_error:
        return response.status_code, [], response.headers.get("retry-after", "")
    return 200, response.json()["choices"][0]["token_ids"], ""


@dataclass
class Writing(threading.Thread):
    """A streamed answer; `ids` grow as they come, `error` says what else came."""

    url: str
    model: str
    tokens: int
    ids: list[int] = field(default_factory=list)
    error: str = ""
    begun: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        asked = body(self.model, self.tokens, stream=True)
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/completions", json=asked, timeout=BOUND_S, trust_env=False
            ) as response:
                if response.is_error:
                    self.error = f"{response.status_code}: {response.read().decode()[:200]}"
                    return
                for event in events(response.iter_lines()):
                    for choice in event["choices"]:
                        self.ids += choice.get("token_ids") or []
                    self.begun.set()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.begun.set()


@dataclass
class Trials:
    """What has been seen so far."""

    service: DeviceService
    http: httpx.Client
    reference: dict[str, list[int]]
    rng: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    def one(self) -> None:
        """One model writes, the other is asked at a random moment, by one or two callers or by one who leaves."""
        first, second = self.rng.sample(NAMES, 2)
        writing = Writing(self.service.url, first, self.rng.randrange(1, LONGEST))
        writing.start()
        writing.begun.wait(BOUND_S)
        time.sleep(self.rng.uniform(0, 0.5))
        began = time.monotonic()
        if self.rng.random() < 0.15:
            self.leave(second)
        askers = [Writing(self.service.url, second, self.rng.randrange(1, 200)) for _ in range(self.rng.choice((1, 2)))]
        for asker in askers:
            asker.start()
        for thread in (writing, *askers):
            thread.join(max(0.0, began + BOUND_S - time.monotonic()))
            if thread.is_alive():
                self.faults.append(f"{thread.model} hangs")
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.check(writing, may_be_refused=False)
        for asker in askers:
            self.check(asker, may_be_refused=True)
        engines = [child for child in self.service.children() if is_engine(child)]
        if len(engines) > 1:
            self.faults.append(f"{len(engines)} engines at once")

    def leave(self, model: str) -> None:
        """Ask and go before the answer."""
        try:
            self.http.post("/v1/completions", json=body(model, 10), timeout=self.rng.uniform(0.01, 0.5))
        except httpx.TimeoutException:
            self.outcomes["left"] += 1

    def check(self, writing: Writing, *, may_be_refused: bool) -> None:
        if writing.error.startswith("503") and may_be_refused:
            self.outcomes["503"] += 1
            status, ids, retry_after = whole(self.http, writing.model, 5)
            if status == 503 and not retry_after.isdigit():
                self.faults.append("503 without Retry-After")
            elif status == 200 and ids != self.reference[writing.model][:5]:
                self.faults.append(f"{writing.model} answers wrongly on the second try")
            return
        expected = self.reference[writing.model][: writing.tokens]
        if writing.error or writing.ids != expected:
            self.faults.append(
                f"{writing.model}: {len(writing.ids)} of {writing.tokens} tokens, right up to "
                f"{agreeing(writing.ids, expected)}; {writing.error or 'no error'}"
            )
        else:
            self.outcomes["written" if not may_be_refused else "answered"] += 1


def agreeing(left: list[int], right: list[int]) -> int:
    """Length of the common beginning."""
    return next((at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), len(left))


def refused_then_told_when(trials: Trials) -> None:
    """The case that must not be left to chance: the answer takes longer than the wait, and the refusal says when to retry."""
    writers = [Writing(trials.service.url, NAMES[0], LONGEST) for _ in range(4)]
    for writing in writers:
        writing.start()
    for writing in writers:
        writing.begun.wait(BOUND_S)
    status, _, retry_after = whole(trials.http, NAMES[1], 5)
    for writing in writers:
        writing.join(BOUND_S)
        trials.check(writing, may_be_refused=False)
    if status == 503:
        trials.outcomes["503"] += 1
        if not retry_after.isdigit():
            trials.faults.append("503 without Retry-After")


def memory(service: DeviceService) -> int:
    return int(psutil.Process(service.pid).memory_info().rss)


def left_over(service: DeviceService, http: httpx.Client) -> list[str]:
    """What is still there after both models were unloaded and the service has ended."""
    for name in NAMES:
        http.post(f"/edgewise/v1/models/{name}/unload").raise_for_status()
    limit = time.monotonic() + 120
    while (status := http.get("/edgewise/v1/models").json())["granted_bytes"] and time.monotonic() < limit:
        time.sleep(0.05)
    faults = [f"{child.pid} runs after unloading" for child in service.children() if is_engine(child)]
    if status["granted_bytes"] or any(model["active"] or model["waiting"] for model in status["models"]):
        faults.append(f"still counted after unloading: {status}")
    family = service.children()
    code = service.stop()
    faults += [f"process {child.pid} is left" for child in family if psutil.pid_exists(child.pid)]
    return faults if code == 0 else [*faults, f"exit code {code}"]


def carry_out(home: Path, count: int) -> Verdict:
    for number, name in enumerate(NAMES):
        import_tiny(home, name, seed=number + 1, **MODEL)
    with (
        running(model=NAMES[0], home=home, environment=SETTINGS) as service,
        httpx.Client(base_url=service.url, timeout=BOUND_S, trust_env=False) as http,
    ):
        reference = {name: whole(http, name, LONGEST)[1] for name in NAMES}
        progress("the undisturbed answers are there")
        trials = Trials(service, http, reference, random.Random(7))
        refused_then_told_when(trials)
        for _ in range(min(WARM_UP, count)):
            trials.one()
        before = memory(service)
        for number in range(count):
            trials.one()
            if (number + 1) % 20 == 0:
                progress(f"{number + 1}/{count}: {dict(trials.outcomes)}, {len(trials.faults)} faults")
        growth = memory(service) / before - 1
        trials.faults += left_over(service, http)
    if any(len(ids) != LONGEST for ids in reference.values()):
        trials.faults.append("a reference answer is cut")
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(trials.outcomes.items()))
    figure = f"{outcomes}; {len(trials.faults)} faults, longest {trials.longest_s:.1f} s, service memory {growth:+.1%}"
    right = not trials.faults
    return Verdict(
        figure=figure,
        passed=right and growth <= MAX_GROWTH,
        correct=right if count < WARM_UP else None,  # so few trials say nothing of growth
        details={"faults": trials.faults[:20]},
    )


def measure(count: int) -> Verdict:
    with new_home(starter=False) as home:
        return carry_out(home, count)


LINE = Line(
    number=7,
    title="One model writes while another is asked, with memory for one",
    bar=f"answers intact or 503 with Retry-After, none over {BOUND_S:g} s, nothing left over; service memory "
    f"+{MAX_GROWTH:.0%} at most",
    count=100,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_7")
