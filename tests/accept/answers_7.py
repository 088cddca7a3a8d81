"""SIGTERM while a 32k prompt is being prefilled: the service ends with code 0 within its stated bound."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import psutil

from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.service import import_tiny, new_home, running

CONTEXT = 32768
DRAIN_S = 5.0
BOUND_S = DRAIN_S + 5.0  # the unit file's TimeoutStopSec stands to drain_s as this does
MODEL: dict[str, Any] = {"hidden": 256, "layers": 8, "heads": 8, "kv_heads": 4}  # large enough to prefill for seconds
PROMPT_TOKENS = CONTEXT - 64


class LongRequest(threading.Thread):
    """A streamed completion of a 32k prompt, given as token ids; notes whether any text came, and how the stream ended."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._model = model
        self.lines: list[str] = []
        self.sent = threading.Event()

    def run(self) -> None:
        body = {
            "model": self._model,
            "prompt": [5 + i % 200 for i in range(PROMPT_TOKENS)],
            "max_tokens": 8,
            "stream": True,
        }
        self.sent.set()
        try:
            with httpx.stream(
                "POST", f"{self._url}/v1/completions", json=body, timeout=120, trust_env=False
            ) as response:
                self.lines += [line for line in response.iter_lines() if line.startswith("data:")]
        except httpx.HTTPError as error:
            self.lines.append(f"broken: {error}")


def one_drain() -> tuple[int, float, list[str], int]:
    """(exit code, seconds to the end, lines of the stream, processes left behind) of one SIGTERM in mid-prefill."""
    with new_home(starter=False) as home:
        model = import_tiny(home, context=CONTEXT, **MODEL)
        environment = {"EDGEWISE_DRAIN_S": str(DRAIN_S)}
        with running(model=model, home=home, environment=environment) as service:
            request = LongRequest(service.url, model)
            request.start()
            request.sent.wait()
            time.sleep(1.0)  # the prefill is under way: accepted, and far from its end
            if request.lines or not request.is_alive():
                raise NotRun("the prefill was over before SIGTERM came: the model is too small for this machine")
            family = service.children()
            began = time.monotonic()
            code = service.stop(timeout_s=BOUND_S * 3)
            took = time.monotonic() - began
            request.join(30)
            left = [child.pid for child in family if psutil.pid_exists(child.pid)]
    return code, took, request.lines, len(left)


def measure(count: int) -> Verdict:
    codes, times, orphans, ends = [], [], 0, []
    for trial in range(count):
        code, took, lines, left = one_drain()
        codes.append(code)
        times.append(took)
        orphans += left
        ends.append(lines[-1] if lines else "")
        progress(f"{trial + 1}/{count}: code {code} after {took:.1f} s")
    passed = not any(codes) and max(times) <= BOUND_S and orphans == 0
    figure = f"exit codes {sorted(set(codes))}, longest {max(times):.1f} s, {orphans} processes left"
    return Verdict(figure=figure, passed=passed, details={"seconds": times, "stream_ends": ends})


LINE = Line(
    number=7,
    title=f"SIGTERM during a 32k prefill (drain_s = {DRAIN_S:g})",
    bar=f"exit 0 within {BOUND_S:g} s, no process left",
    count=3,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_7")
