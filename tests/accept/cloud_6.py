"""A picture of 20 steps beside 8 chat streams on one device service: the streams keep their pace.

What is compared: the time between two tokens of a stream, each sent by itself, as its client sees it, (a) while nothing is drawn,
(b) from the moment a picture was asked for until it has come. Blocks of (a) and (b) take turns in one run. A stream asks
its next question when one is answered, until the picture has come, however quick the machine; the questions are the same in both
blocks. The picture model has the starter's architecture and 23 M random parameters, at 64x64 pixels; the text model is random.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import httpx

from edgewise.models.diffusion.starter.tiny import STARTER_SIZED, make_tiny_pictures
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.service import TOKEN_BY_TOKEN, edgewise, import_tiny, new_home, running

STREAMS = 8
TOKENS = 250
STEPS = 20
QUIET_S = 4.0
BAR = 1.5
CHAT = "chat"
PICTURES = "pictures-23m"


@dataclass
class Block:
    """What one block saw.

    Attributes:
        gaps: Seconds between two tokens of one answer, with the moment of the later one.
        tokens: What was answered, by stream and number of its question.
        asked: When the picture was asked for; when the block began, without one.
        ended: When it had come.
        computed: Steps that were computed for it.
    """

    gaps: list[tuple[float, float]] = field(default_factory=list)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    asked: float = 0.0
    ended: float = float("inf")
    computed: int = 0

    def gaps_beside(self) -> list[float]:
        """Those that ended between the asking and the end."""
        return [gap for gap, at in self.gaps if self.asked <= at <= self.ended]


def chat(url: str, stream: int, question: int) -> tuple[list[float], list[int]]:
    """One answer: when each token came, and the tokens."""
    body = {
        "model": CHAT,
        "messages": [{"role": "user", "content": f"Count slowly from {stream + STREAMS * question} on."}],
        "max_tokens": TOKENS,
        "seed": stream,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    times: list[float] = []
    tokens: list[int] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    fresh = choice.get("token_ids") or []
                    tokens += fresh
                    times += [time.perf_counter()] * bool(fresh)
    return times, tokens


def keep_asking(url: str, stream: int, enough: threading.Event, block: Block) -> None:
    """One stream: an answer after the other until there is enough, at least one."""
    for question in itertools.count():
        times, tokens = chat(url, stream, question)
        block.gaps += [(after - before, after) for before, after in itertools.pairwise(times)]
        block.tokens[stream, question] = tokens
        if enough.is_set():
            return


def draw(url: str, seed: int, block: Block) -> None:
    block.asked = time.perf_counter()
    body = {"model": PICTURES, "prompt": "a red house", "steps": STEPS, "seed": seed}
    answer = httpx.post(f"{url}/v1/images/generations", json=body, timeout=600)
    answer.raise_for_status()
    block.ended = time.perf_counter()
    block.computed = answer.json()["edgewise"]["stages"][0]["computed_steps"]


def run_block(url: str, *, picture: int | None) -> Block:
    """8 streams, and a picture that is asked for when they are under way; without one, for some seconds."""
    block = Block()
    enough = threading.Event()
    with ThreadPoolExecutor(STREAMS) as pool:
        block.asked = time.perf_counter()
        streams = [pool.submit(keep_asking, url, number, enough, block) for number in range(STREAMS)]
        try:
            time.sleep(0.5)
            if picture is None:
                time.sleep(QUIET_S - 0.5)
            else:
                draw(url, picture, block)
        finally:
            enough.set()
        for stream in streams:
            stream.result()
    return block


def p95(gaps: list[float]) -> float:
    return sorted(gaps)[min(len(gaps) - 1, int(0.95 * len(gaps)))]


def measure(count: int) -> Verdict:
    """`count` pairs of blocks."""
    alone: list[float] = []
    beside: list[float] = []
    pictures: list[float] = []
    wrong = 0
    compared = 0
    with new_home(starter=False) as home:
        import_tiny(home, CHAT, hidden=256, layers=4, context=1024)
        folder = make_tiny_pictures(home / "source", config=replace(STARTER_SIZED, size=64))
        edgewise(home, "models", "import", str(folder), "--name", PICTURES, "--role", "diffusion")
        with running(model=CHAT, home=home, environment=TOKEN_BY_TOKEN) as service:
            run_block(service.url, picture=0)  # load both models, learn their costs
            for number in range(count):
                quiet = run_block(service.url, picture=None)
                busy = run_block(service.url, picture=number)
                alone += quiet.gaps_beside()
                beside += busy.gaps_beside()
                pictures.append(busy.ended - busy.asked)
                both = quiet.tokens.keys() & busy.tokens.keys()
                wrong += any(quiet.tokens[one] != busy.tokens[one] for one in both) or busy.computed != STEPS
                compared += len(both)
                progress(f"{number + 1} of {count}: picture {pictures[-1]:.1f} s")
    ratio = p95(beside) / p95(alone)
    figure = (
        f"p95 between tokens {p95(beside) * 1e3:.1f} ms beside a picture, {p95(alone) * 1e3:.1f} ms without: {ratio:.2f}x; "
        f"a picture of {STEPS} steps took {sorted(pictures)[len(pictures) // 2]:.1f} s; "
        f"{compared} answers compared, {wrong} blocks with other answers"
    )
    return Verdict(
        figure=figure,
        passed=ratio <= BAR and wrong == 0,
        correct=wrong == 0,
        details={"picture_s": [round(seconds, 2) for seconds in pictures], "gaps_beside": len(beside)},
    )


LINE = Line(
    number=6,
    title=f"A picture of {STEPS} steps and {STREAMS} chat streams on one device service: the streams keep their pace",
    bar=f"p95 between tokens <= {BAR}x that without the picture, every answer the same",
    count=5,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_6")
