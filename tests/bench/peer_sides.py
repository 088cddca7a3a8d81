"""The engines that are measured side by side, behind one small interface: a batch of prompts in, times out."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import httpx

from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import Work
from tests.e2e.service import STARTER, import_model, new_home, running

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LLAMACPP, TRANSFORMERS = "xllamacpp", "transformers"


class NotInstalled(Exception):
    """A peer is not there; the message names it and how to get it."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from sending a batch: to the first token of its first answer, and to its end. `tokens` of one answer; `spans` are
    those to the first and the last token of each, where the side tells."""

    first_s: float
    total_s: float
    tokens: int
    spans: tuple[tuple[float, float], ...] = ()


class Side(Protocol):
    """One engine, ready."""

    name: str
    version: str

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Times:
        """Answers all prompts together, greedily, with exactly so many tokens each."""
        ...


AskAll = Callable[[Target, Sequence[Work]], Sequence[Sample]]
"""Sends requests together and reads all answers; every sample is due at the same moment."""


def ask_all(target: Target, works: Sequence[Work]) -> list[Sample]:
    """An `AskAll` as applications are written, with httpx."""
    return asyncio.run(_ask_all(target, works))


async def _ask_all(target: Target, works: Sequence[Work]) -> list[Sample]:
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        began = time.perf_counter()
        samples = [Sample(scheduled=began) for _ in works]
        await asyncio.gather(*(ask(client, target, *one) for one in zip(works, samples, strict=True)))
    return samples


class ServerSide:
    """A server with OpenAI's API; a batch is as many requests at once."""

    def __init__(self, name: str, version: str, url: str, model: str, ask_all: AskAll = ask_all) -> None:
        self.name = name
        self.version = version
        self.url = url
        self.model = model
        self._ask_all = ask_all
        fields = {"temperature": 0, "ignore_eos": True}
        self._target = Target(base_url=url, model=model, endpoint="completions", fields=fields)

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Times:
        samples = self._ask_all(self._target, [Work(prompt=prompt, answer_tokens=tokens) for prompt in prompts])
        began = samples[0].scheduled
        for sample, prompt in zip(samples, prompts, strict=True):
            done = (sample.error, sample.prompt_tokens, sample.answer_tokens)
            if done != (None, len(prompt), tokens):
                raise RuntimeError(f"{self.name}: {done} instead of no error, {len(prompt)} and {tokens} tokens")
        return Times(
            first_s=min(sample.arrivals[0] for sample in samples) - began,
            total_s=max(sample.arrivals[-1] for sample in samples) - began,
            tokens=tokens,
            spans=tuple((sample.arrivals[0] - began, sample.arrivals[-1] - began) for sample in samples),
        )


class ProcessSide:
    """A process that takes batches as lines of JSON."""

    def __init__(self, name: str, version: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.version = version
        self._process = process

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Times:
        found = exchange(self._process, self.name, {"prompts": list(prompts), "tokens": tokens})
        return Times(first_s=found["first_s"], total_s=found["total_s"], tokens=tokens)


@contextmanager
def edgewise_side(
    threads: int,
    streams: int,
    flags: Sequence[str],
    *,
    guesses: bool = True,
    weights: Path | None = None,
    ask_all: AskAll = ask_all,
) -> Iterator[ServerSide]:
    """The device service, asked by `ask_all`.

    Args:
        guesses: Without, each token is computed for itself, as peers do it.
        weights: A GGUF file with the model; None for the starter as it is shipped.
    """
    environment = {"EDGEWISE_ENGINE__THREADS": str(threads), "EDGEWISE_ENGINE__MAX_RUNNING": str(max(32, streams))}
    environment |= {} if guesses else {"EDGEWISE_ENGINE__SPECULATION": "off"}
    with ExitStack() as stack:
        home = stack.enter_context(new_home(starter=weights is None))
        model = STARTER
        if weights is not None:
            model = "weights"
            import_model(home, weights, model)
        service = stack.enter_context(running(*flags, model=model, home=home, environment=environment))
        hello = httpx.post(
            f"{service.url}/v1/completions", json={"model": model, "prompt": "Hi", "max_tokens": 1}, timeout=300
        )
        version = hello.json()["edgewise"]["stages"][0]["numeric_class"]
        yield ServerSide("edgewise", str(version), f"{service.url}/v1", model, ask_all)


@contextmanager
def llamacpp_side(gguf: Path, threads: int, streams: int, context: int, python: str) -> Iterator[Side]:
    """llama.cpp's server; `python` is an interpreter with the package."""
    require(LLAMACPP, python)
    flags = ["--threads", str(threads), "--streams", str(streams), "--context", str(context)]
    with child([python, str(HERE / "peer_llamacpp.py"), str(gguf), *flags]) as process:
        ready = read_line(process, "llama.cpp")
        yield ServerSide("llama.cpp", f"xllamacpp {ready['version']}, {gguf.name[:40]}", ready["url"], "any")


@contextmanager
def transformers_side(gguf: Path, threads: int, dtype: str) -> Iterator[Side]:
    """transformers on the same weights, dequantized."""
    require(TRANSFORMERS, sys.executable)
    flags = ["--threads", str(threads), "--dtype", dtype]
    with child([sys.executable, "-m", "tests.bench.peer_transformers", str(gguf), *flags]) as process:
        yield ProcessSide("transformers", read_line(process, "transformers")["version"], process)


def require(package: str, python: str) -> None:
    """Raises NotInstalled where `python` cannot import the package."""
    if python == sys.executable:
        found = importlib.util.find_spec(package) is not None
    else:
        probe = [python, "-c", f"import {package}"]
        found = subprocess.run(probe, check=False, capture_output=True, timeout=120).returncode == 0
    if not found:
        remedy = (
            "or name an interpreter that has it with --llamacpp-python" if package == LLAMACPP else "or leave it out"
        )
        raise NotInstalled(f"{package} is not installed for {Path(python).name}: `pip install {package}`, {remedy}.")


@contextmanager
def child(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        try:
            yield process
        finally:
            _pipe(process.stdin).close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def exchange(process: subprocess.Popen[str], name: str, work: dict[str, Any]) -> dict[str, Any]:
    """Gives a side's process a line of work and reads what became of it."""
    _pipe(process.stdin).write(json.dumps(work) + "\n")
    _pipe(process.stdin).flush()
    return read_line(process, name)


def read_line(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    for line in _pipe(process.stdout):
        if line.startswith("{"):  # libraries may print words of their own before
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"{name} ended with code {process.wait(30)}")


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # PIPE was asked for
    return stream
