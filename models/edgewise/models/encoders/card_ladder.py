"""The ladder on a CUDA card: TensorRT, CUDA, torch in a CUDA graph, and the CPU; each held to torch in float32 and timed.

A candidate that cannot be built loses with its reason, and no other takes its place unseen: all nodes of a rung on the card
are on the card. Like all rungs they are tried on real inputs, one at a time and many together.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from edgewise.core.errors import EdgewiseError, UnsupportedModel
from edgewise.models.encoders.card import (
    Buffers,
    CardSession,
    Copies,
    OnnxProgram,
    Program,
    TorchProgram,
    onnx_program,
    providers_of,
    shares_memory,
)
from edgewise.models.encoders.exported import export, to_half
from edgewise.models.encoders.ladder import Candidate, Told, cosines, outputs, record_of, record_of_absent
from edgewise.models.encoders.record import CandidateRecord
from edgewise.models.encoders.tensor_network import TensorSession
from edgewise.models.encoders.weights import Array

_BLOCKS, _RUNS, _WARM = 7, 20, 10
_CPU_RUNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An encoder as the ladder on a card climbs with it.

    Attributes:
        module: Float32, in evaluation mode, on the CPU; one tensor in and one out, whose first axes count inputs. None for a
            network that is written as a graph; it then has no rung of torch.
        graph: Its float32 graph, whose first axes are "n"; None has the module exported.
        judged: Real inputs [1, ...] of one shape.
        gate: Least cosine to float32, over each of them.
        many: Inputs of the larger timing.
    """

    module: torch.nn.Module | None = None
    graph: bytes | None = None
    judged: Sequence[Array]
    gate: float
    many: int = 8


class CardLadder:
    """One encoder's candidates on a card.

    Args:
        folder: Where TensorRT keeps its engines.
        threads: Of the candidate on the CPU.
        rivals: Candidates on the CPU that were measured already; without any, float32 is measured there.
        memory_bytes: Of the card, that each candidate may take; None for no bound.
        shared: Whether card and processor share their memory; asked of the card if left out.
    """

    def __init__(
        self,
        reference: Reference,
        folder: Path,
        *,
        threads: int,
        rivals: Sequence[Candidate] = (),
        memory_bytes: int | None = None,
        shared: bool | None = None,
    ) -> None:
        self._reference = reference
        self._folder = folder
        self._threads = threads
        self._rivals = rivals
        self._memory = memory_bytes
        self._shared = shares_memory() if shared is None else shared
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._truth = np.zeros((0, 0), np.float32)

    def climb(self, told: Told) -> tuple[Candidate, list[CandidateRecord]]:
        """The quickest that passes the gate, and the records of all; `told` hears how far it is."""
        if self._memory is not None:
            total = torch.cuda.get_device_properties().total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._memory / total))
        reference = self._reference
        told("float32", 0.0)
        graph = reference.graph or export(self._module, reference.judged[0])
        self._judge(graph)
        half = to_half(graph)
        ways: dict[str, Callable[[], tuple[Candidate, Mapping[str, int]]]] = {
            "tensorrt-fp16": lambda: self._onnx("tensorrt-fp16", graph),
            "cuda-fp32": lambda: self._onnx("cuda-fp32", graph),
            "cuda-fp16": lambda: self._onnx("cuda-fp16", half),
            "cuda-graph-fp16": lambda: self._onnx("cuda-graph-fp16", half),
            "torch-graph-fp16": self._torch,
        }
        if not self._rivals:
            ways["cpu-fp32"] = lambda: (self._cpu(graph), {})
        built = list(self._rivals)
        nodes: dict[str, Mapping[str, int]] = {}
        absent: list[CandidateRecord] = []
        for number, (name, make) in enumerate(ways.items()):
            told(name, 0.2 + 0.8 * number / len(ways))
            try:
                candidate, nodes[name] = make()
            except EdgewiseError as error:
                absent.append(record_of_absent(name, error.message))
            except (RuntimeError, ValueError) as error:  # of torch and of ONNX Runtime: this rung has lost
                absent.append(record_of_absent(name, str(error).strip().splitlines()[0][:300]))
            else:
                built.append(candidate)
        best = min((it for it in built if it.passes(reference.gate)), key=lambda it: it.cost)
        records = [replace(record_of(it, best, reference.gate), nodes=nodes.get(it.name, {})) for it in built]
        return best, [*records, *absent]

    @property
    def _module(self) -> torch.nn.Module:
        if self._reference.module is None:
            raise UnsupportedModel("the network is written as a graph; there is no module of torch.")
        return self._reference.module

    # --- candidates ----------------------------------------------------------------------------------------------------

    def _judge(self, graph: bytes) -> None:
        """What float32 gives: the module's numbers on the card, without tf32, or the graph's on the CPU."""
        judged = self._reference.judged
        if self._reference.module is None:
            found = [TensorSession(graph, self._threads).run([it]) for it in judged]
        else:
            module = copy.deepcopy(self._reference.module).cuda()
            with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
                found = [module(torch.from_numpy(it).cuda()).cpu().numpy() for it in judged]
        self._truth = np.concatenate([it.reshape(1, -1) for it in found])
        self._shapes = (judged[0].shape[1:], found[0].shape[1:])

    def _onnx(self, name: str, graph: bytes) -> tuple[Candidate, Mapping[str, int]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        copies = Copies()
        providers = providers_of(name, self._folder, self._memory)
        with tempfile.TemporaryDirectory(prefix="edgewise-profile-") as folder:
            # In a captured graph nodes cannot be watched: they are placed as without one.
            watched = providers_of(name.replace("-graph", ""), self._folder, self._memory)
            nodes = _nodes(onnx_program(graph, watched, self._buffers(1, copies), profile=f"{folder}/nodes"))
        session = CardSession(
            lambda size: onnx_program(graph, providers, self._buffers(size, copies)), self._reference.many, copies
        )
        return self._measured(name, graph, session), nodes

    def _torch(self) -> tuple[Candidate, Mapping[str, int]]:
        copies = Copies()
        module = copy.deepcopy(self._module).half().cuda()
        session = CardSession(
            lambda size: TorchProgram(module, self._buffers(size, copies)), self._reference.many, copies
        )
        return self._measured("torch-graph-fp16", b"", session), {}

    def _cpu(self, graph: bytes) -> Candidate:
        session = TensorSession(graph, self._threads)
        found = cosines(outputs(session, self._reference.judged), self._truth)
        candidate = Candidate("cpu-fp32", {}, graph, session, found)
        for size in (1, self._reference.many):
            inputs = self._reference.judged[:size]
            times = []
            for _ in range(_CPU_RUNS):
                began = time.perf_counter()
                session.run(inputs)
                times.append(time.perf_counter() - began)
            candidate.times[size] = float(np.median(times))
        return candidate

    # --- measuring -----------------------------------------------------------------------------------------------------

    def _buffers(self, size: int, copies: Copies) -> Buffers:
        return Buffers(((size, *self._shapes[0]), (size, *self._shapes[1])), self._shared, copies)

    def _measured(self, name: str, graph: bytes, session: CardSession) -> Candidate:
        candidate = Candidate(name, {}, graph, session, cosines(outputs(session, self._reference.judged), self._truth))
        with torch.cuda.stream(session.stream):
            for size, program in session.programs.items():
                program.buffers.put(np.concatenate(self._reference.judged[:size]))
                candidate.times[size] = time_program(program)
        return candidate


def time_program(program: Program) -> float:
    """Seconds of one batch whose input lies on the card: the median of several rows of runs, each row waited for."""
    for _ in range(_WARM):
        program.launch()
    torch.cuda.synchronize()
    times = []
    for _ in range(_BLOCKS):
        began = time.perf_counter()
        for _ in range(_RUNS):
            program.launch()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / _RUNS)
    return float(np.median(times))


def _nodes(program: OnnxProgram) -> dict[str, int]:
    """Nodes by provider, as ONNX Runtime noted them while one batch was computed."""
    program.launch()
    torch.cuda.synchronize()
    file = Path(program.session.end_profiling())
    events = json.loads(file.read_text(encoding="utf-8"))
    found = Counter(
        str(event["args"]["provider"])
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and "provider" in event.get("args", {})
    )
    return dict(found)
