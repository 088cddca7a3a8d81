"""The sides of `tests.bench.cpu`: what is started for each, and how it is asked."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.bench.cpu_files import Kind, billion_file, starter_file
from tests.bench.lean_client import ask_leanly
from tests.bench.peer_sides import (
    HERE,
    LLAMACPP,
    TRANSFORMERS,
    NotInstalled,
    ServerSide,
    child,
    edgewise_side,
    exchange,
    read_line,
    require,
)

STREAMS = 8
CONTEXT = 2048 + 256
KV_MIB = {"starter": 320, "1b": 640}
KINDS: dict[int, Kind] = {4: "Q4_0", 8: "Q8_0"}
QUANTIZE: dict[int, str] = {4: "int4", 8: "int8"}
Spans = list[tuple[float, float]]


class Side(Protocol):
    """One engine, ready."""

    name: str
    bits: int

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Spans:
        """Answers all prompts together; seconds to the first and to the last token of each answer."""
        ...

    def facts(self) -> dict[str, Any]:
        """What it is, how long it took to load, its greatest memory so far."""
        ...


@dataclass(slots=True)
class Child:
    """A process that takes batches as lines of JSON."""

    name: str
    bits: int
    process: subprocess.Popen[str]
    ready: Mapping[str, Any]
    loaded_mib: float

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Spans:
        found = exchange(self.process, self.name, {"prompts": list(prompts), "tokens": tokens})
        if "spans" in found:
            return [(first, last) for first, last in found["spans"]]
        return [(found["first_s"], found["total_s"])] * len(prompts)

    def facts(self) -> dict[str, Any]:
        return {
            "version": self.ready["version"],
            "load_s": round(self.ready["load_s"], 2),
            "loaded_mib": round(self.loaded_mib),
            "peak_mib": round(peak_mib(self.process.pid)),
        }


class Service:
    """Our service through its REST API."""

    def __init__(self, name: str, bits: int, server: ServerSide) -> None:
        self.name = name
        self.bits = bits
        self._server = server

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Spans:
        return list(self._server.generate(prompts, tokens).spans)

    def facts(self) -> dict[str, Any]:
        return {"version": self._server.version}


def peak_mib(pid: int | str) -> float:
    """The greatest resident set of a process (proc(5), VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


Start = Callable[[], AbstractContextManager[Side]]


@contextmanager
def started(name: str, bits: int, command: Sequence[str]) -> Iterator[Side]:
    with child(command) as process:
        ready = read_line(process, name)
        yield Child(name, bits, process, ready, peak_mib(process.pid))


@contextmanager
def rest(bits: int, file: Path, threads: int) -> Iterator[Side]:
    """The same file as in a process of its own; its client takes as little of the processor as it can."""
    flags = ["--quantize", QUANTIZE[bits]]
    with edgewise_side(threads, STREAMS, flags, guesses=False, weights=file, ask_all=ask_leanly) as server:
        yield Service(f"edgewise REST {QUANTIZE[bits]}", bits, server)


def starters(args: argparse.Namespace, absent: Mapping[str, str]) -> dict[str, Start]:
    """How each side is started, by its name, peers that are absent left out; of each weight format ours comes first."""
    make = billion_file if args.model == "1b" else starter_file
    common = ["--threads", str(args.threads), "--context", str(CONTEXT)]
    found: dict[str, Start] = {}

    def add(name: str, bits: int, command: Sequence[str]) -> None:
        found[name] = partial(started, name, bits, command)

    for bits in args.bits:
        shipped = args.quick and args.model == "starter"  # a quick look need not round a file first
        file = starter_file("Q4_1") if shipped else make(KINDS[bits])
        ours = [sys.executable, "-m", "tests.bench.cpu_edgewise", str(file), *common]
        ours += ["--kv-mib", str(KV_MIB[args.model]), "--quantize", QUANTIZE[bits]]
        add(f"edgewise {QUANTIZE[bits]}", bits, ours)
        if args.model == "starter" and not args.quick:
            found[f"edgewise REST {QUANTIZE[bits]}"] = partial(rest, bits, file, args.threads)
        if "llama.cpp" in absent:
            continue
        kinds = [KINDS[bits], "Q4_1"] if bits == 4 and args.model == "starter" else [KINDS[bits]]
        for kind, kv in ((kind, kv) for kind in kinds for kv in ("f16", "q8_0")):
            theirs = [args.llamacpp_python, str(HERE / "cpu_llamacpp.py"), str(make(kind)), *common]
            add(f"llama.cpp {kind}, KV {kv}", bits, [*theirs, "--streams", str(STREAMS), "--kv", kv])
    if args.model == "starter":
        hf = [sys.executable, "-m", "tests.bench.peer_transformers", str(starter_file("Q4_1"))]
        add("transformers float32", 32, [*hf, "--threads", str(args.threads)])
    return {
        name: start
        for name, start in found.items()
        if name.split()[0] not in absent and (not args.only or any(one in name for one in args.only))
    }


def missing(python: str) -> dict[str, str]:
    """Peers that cannot be run here, and why."""
    told = {}
    for name, package, interpreter in (
        ("llama.cpp", LLAMACPP, python),
        ("transformers", TRANSFORMERS, sys.executable),
    ):
        try:
            require(package, interpreter)
        except NotInstalled as error:
            told[name] = str(error)
    return told
