"""`make run`: the console that it names shows the device online, with the speed at which it answers right now."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from scripts.service import edgewise_command, edgewise_environment, free_port
from tests.accept.line import Line, NotRun, Verdict, main
from tests.e2e.console.browser import CHROMIUM, chromium, visiting
from tests.e2e.pair import import_pictures
from tests.e2e.service import import_tiny, new_home, suite_limits

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 10.0
_SHOWN = """
() => {
  const heads = [...document.querySelectorAll('table.data thead th')].map((one) => one.innerText.trim().toLowerCase());
  const row = document.querySelector('table.data tbody tr');
  if (!row) return null;
  const cells = [...row.querySelectorAll('td,th')].map((one) => one.innerText.trim());
  return Object.fromEntries(heads.map((head, index) => [head, cells[index]]));
}"""


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """What `make run` starts, once its acts are over: address, name and password of the console, address of the device."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            output = ""
            assert run.stdout is not None
            for line in run.stdout:
                output += line
                if "Ctrl-C ends it" in line:
                    break
            console = re.search(r"console on (\S+) \(log in as (\S+) with (\S+)\)", output)
            serving = re.search(r"serving on (\S+)/v1", output)
            if console is None or serving is None:
                raise AssertionError(output)
            yield console[1], console[2], console[3], serving[1]
        finally:
            os.kill(run.pid, signal.SIGINT)
            run.communicate(timeout=120)


def _ask(url: str, model: str, over: Event) -> None:
    """One question after the other, answered on the device."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 24}
    while not over.is_set():
        httpx.post(f"{url}/v1/completions", json=body, headers={"x-edgewise-privacy": "private"}, timeout=60)


async def _look(url: str, name: str, password: str) -> dict[str, Any]:
    """What the first row of the table says once it says online and a speed, and after how many seconds."""
    async with chromium() as browser, visiting(browser, url) as visitor:
        await visitor.log_in(name, password)
        began = time.monotonic()
        await visitor.go("/devices")
        while True:
            row = await visitor.page.evaluate(_SHOWN) or {}
            tokens = next((text for head, text in row.items() if head.startswith("tokens")), None)
            seconds = time.monotonic() - began
            if "Online" in " ".join(map(str, row.values())) and tokens and float(tokens.split()[0]) > 0:
                return {"seconds": seconds, "row": row}
            if seconds > 60:
                raise AssertionError(f"the first row says {row}")
            await asyncio.sleep(0.1)


def _measure_one(command: list[str], environment: dict[str, str], model: str) -> dict[str, Any]:
    over = Event()
    with _running(command, environment) as (console, name, password, device), ThreadPoolExecutor(1) as asking:
        asking.submit(_ask, device, model, over)
        try:
            return asyncio.run(_look(console, name, password))
        finally:
            over.set()


def _tiny() -> dict[str, Any]:
    with new_home(starter=False) as home:
        import_tiny(home)
        import_pictures(home, "pictures")
        flags = [
            "--console-port",
            str(free_port()),
            "--out",
            str(home),
            "--model",
            "tiny",
            "--picture-model",
            "pictures",
        ]
        return _measure_one(edgewise_command("demo", *flags), edgewise_environment(home, suite_limits()), "tiny")


def _starter() -> dict[str, Any]:
    with new_home() as home:
        ports = ["--port", str(free_port()), "--console-port", str(free_port())]
        command = [sys.executable, "-m", "scripts.run", "--home", str(home), *ports]
        return _measure_one(command, {**os.environ, **suite_limits()}, "starter")


def measure(count: int) -> Verdict:
    if CHROMIUM is None:
        raise NotRun("chromium is not installed (apt-get install chromium)")
    seen = [one() for one in (_tiny, _starter)[:count]]
    slowest = max(one["seconds"] for one in seen)
    return Verdict(
        figure=f"online with its speed after {slowest:.1f} s; the table says {seen[-1]['row']}",
        passed=slowest <= LIMIT_S,
        correct=True,
        details={"seen": seen},
    )


LINE = Line(
    number=1,
    title="make run: the console shows the device online with its tokens a second (1: tiny models, 2: the starter too)",
    bar=f"within {LIMIT_S:.0f} s of opening the table",
    count=2,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_1")
