"""`make run`: pull the starter model, start the device service, ask it one question over its REST API, then serve.

With `--once` the service is ended after the answer: exit code 0 if it came, 1 with the reason otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx

from scripts.service import DeviceService, ServiceError, edgewise_command, free_port, port_is_free, port_owner
from scripts.sse import Answer, StreamError, read_answer

QUESTION = "What is the capital of France?"
MODEL = "starter"
DEFAULT_PORT = 8400


def say(text: str) -> None:
    print(f"run: {text}", flush=True)


@dataclass
class Times:
    """Wall-clock seconds spent on each part, from the call of make (or of this script) on."""

    began: float = field(default_factory=lambda: float(os.environ.get("MAKE_BEGAN") or time.time()))
    parts: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def done(self, part: str) -> None:
        now = time.time()
        self.parts[part] = now - (self._last or self.began)
        self._last = now

    def __str__(self) -> str:
        listed = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self.parts.items())
        return f"{sum(self.parts.values()):.1f} s ({listed})"


def default_home() -> Path:
    return Path(os.environ.get("EDGEWISE_HOME") or "~/.local/share/edgewise").expanduser()


def pull_model(home: Path) -> None:
    """Through the command line, which shows a progress bar; quick when the model is already there."""
    code = subprocess.run(
        edgewise_command("models", "pull", MODEL), env={**os.environ, "EDGEWISE_HOME": str(home)}, check=False
    ).returncode
    if code != 0:
        raise SystemExit(f"run: 'edgewise models pull {MODEL}' failed with code {code}; its message is above.")


def choose_port(wanted: int | None) -> int:
    """The port asked for, or the default one, or a free one if something else has the default."""
    port = DEFAULT_PORT if wanted is None else wanted
    if port_is_free("127.0.0.1", port):
        return port
    if wanted is not None:
        raise SystemExit(f"run: port {port} is taken by {port_owner(port)}; name another with --port (make: PORT=).")
    other = free_port()
    say(f"port {port} is taken by {port_owner(port)}: using {other} this time")
    return other


def ask(url: str) -> tuple[Answer, float, float]:
    """Ask the question, printing the answer as it comes; returns it with the seconds to its first text and to its end."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_completion_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first: list[float] = []

    def show(text: str) -> None:
        first.append(time.monotonic())
        print(text, end="", flush=True)

    print(f"\n> {QUESTION}", flush=True)
    began = time.monotonic()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300, trust_env=False) as response:
        if response.is_error:
            raise StreamError(f"HTTP {response.status_code}: {response.read().decode(errors='replace')}")
        answer = read_answer(response.iter_lines(), show)
    print("\n", flush=True)
    if not answer.text.strip() or answer.finish_reason not in ("stop", "length"):
        raise StreamError(f"the answer is {answer.text!r} with finish reason {answer.finish_reason!r}")
    return answer, first[0] - began, time.monotonic() - began


def report(answer: Answer, first_s: float, total_s: float, times: Times) -> None:
    """Print tokens/s, the receipt and where the time went."""
    tokens = int((answer.usage or {}).get("completion_tokens", 0))
    rate = (tokens - 1) / (total_s - first_s) if tokens > 1 and total_s > first_s else 0.0
    print(f"{tokens} tokens, {rate:.1f} tokens/s, first text after {first_s:.2f} s")
    print(f"receipt: {json.dumps(answer.receipt, indent=2, ensure_ascii=False)}")
    print(f"from start to answer: {times}", flush=True)


def serve_until_interrupted(service: DeviceService) -> int:
    """Wait for Ctrl-C or the service's own end; returns the exit code for this script."""
    try:
        say(f"serving on {service.url}/v1 (log: {service.log}); Ctrl-C ends it")
        code = service.process.wait()
    except KeyboardInterrupt:
        say("ending the service")
        return service.stop()
    say(f"the service ended with code {code}.\n{service.log_tail()}")
    return code or 1


def end_as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(prog="make run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--once", action="store_true", help="end after the answer")
    parser.add_argument("--port", type=int, help=f"port of the service (default: {DEFAULT_PORT}, or a free one)")
    parser.add_argument("--home", type=Path, default=default_home(), help="state directory")
    args, serve_flags = parser.parse_known_args()
    signal.signal(signal.SIGTERM, end_as_interrupt)
    times = Times()
    times.done("installing")
    pull_model(args.home)
    times.done("model")
    service = DeviceService(
        args.home, ["--model", MODEL, *serve_flags], port=choose_port(args.port), log=args.home / "run.log"
    )
    say(f"starting the device service on {service.url}")
    try:
        with service:
            times.done("starting")
            result = ask(service.url)
            times.done("answering")
            report(*result, times)
            code = service.stop() if args.once else serve_until_interrupted(service)
    except (ServiceError, StreamError, httpx.HTTPError) as error:
        raise SystemExit(f"run: no answer: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    say(f"the service ended with code {code}")
    sys.exit(code)


if __name__ == "__main__":
    main()
