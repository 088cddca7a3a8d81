"""An encoder on a CUDA card: by ONNX Runtime with bound buffers, or by torch in a CUDA graph.

Inputs and outputs pass through pinned memory at fixed addresses. Where card and processor share their memory (Jetson) the card
reads and writes that memory itself, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import onnx
import onnxruntime
import pynvml
import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.encoders.exported import COUNT
from edgewise.models.encoders.weights import Array
from edgewise.models.onnx_session import CUDA, TENSORRT, open_on_card, options_for

Providers = Mapping[str, Mapping[str, str]]
"""Names and options, the preferred first."""

_WARM: Final = 3
"""Runs before a graph is captured: libraries choose their kernels in them."""


@dataclass(slots=True)
class Copies:
    """Bytes that were copied between the processor's memory and the card's."""

    to_card: int = 0
    from_card: int = 0


class Buffers:
    """One input and one output of fixed sizes, at fixed addresses.

    Args:
        shapes: Of input and output, float32.
        shared: Whether the card computes in the processor's memory.
        copies: Counts what is copied.

    Attributes:
        card_in, card_out: What the card reads and writes.
    """

    def __init__(self, shapes: tuple[Sequence[int], Sequence[int]], shared: bool, copies: Copies) -> None:
        self._host_in, self._host_out = (torch.zeros(tuple(it), pin_memory=True) for it in shapes)
        self._shared = shared
        self._copies = copies
        if shared:
            self.card_in, self.card_out = _on_card(self._host_in), _on_card(self._host_out)
        else:
            self.card_in, self.card_out = (torch.zeros(tuple(it), device="cuda") for it in shapes)

    def put(self, batch: Array) -> None:
        """Queue an input; what it leaves empty keeps old numbers, whose results nobody reads."""
        self._host_in[: len(batch)].copy_(torch.from_numpy(np.ascontiguousarray(batch, np.float32)))
        if not self._shared:
            self.card_in.copy_(self._host_in, non_blocking=True)
            self._copies.to_card += self._host_in.nbytes

    def take(self, count: int) -> Array:
        """Wait for the card; the first `count` results."""
        if not self._shared:
            self._host_out.copy_(self.card_out, non_blocking=True)
            self._copies.from_card += self._host_out.nbytes
        torch.cuda.current_stream().synchronize()
        found: Array = self._host_out[:count].numpy().copy()
        return found


class Program(Protocol):
    """Computes one batch of fixed size."""

    @property
    def buffers(self) -> Buffers: ...

    def launch(self) -> None:
        """Queue the computation on the current stream."""


class OnnxProgram:
    """Implements `Program` by a session of one input and one output, whose buffers are bound.

    Args:
        session: All of whose nodes are on the card and whose stream is the current one.
    """

    def __init__(self, session: Any, buffers: Buffers) -> None:
        self.buffers = buffers
        self.session = session
        self._binding = session.io_binding()
        card_in, card_out = buffers.card_in, buffers.card_out
        self._binding.bind_input(
            session.get_inputs()[0].name, "cuda", 0, np.float32, tuple(card_in.shape), card_in.data_ptr()
        )
        self._binding.bind_output(
            session.get_outputs()[0].name, "cuda", 0, np.float32, tuple(card_out.shape), card_out.data_ptr()
        )
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def launch(self) -> None:
        self.session.run_with_iobinding(self._binding, self._options)


class TorchProgram:
    """Implements `Program` by a captured graph.

    Args:
        module: On the card, in the dtype to compute in.
    """

    def __init__(self, module: torch.nn.Module, buffers: Buffers) -> None:
        self.buffers = buffers
        self._module = module
        self._dtype = next(module.parameters()).dtype
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(_WARM):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(self._graph):
            self._compute()

    def launch(self) -> None:
        self._graph.replay()

    def _compute(self) -> None:
        self.buffers.card_out.copy_(self._module(self.buffers.card_in.to(self._dtype)))


class CardSession:
    """Implements `network.Session`: batches of two sizes, one input and many.

    Args:
        make: A program for a number of inputs, on the current stream.
        many: The larger number.

    Attributes:
        stream: All its work is on it.
    """

    def __init__(self, make: Callable[[int], Program], many: int, copies: Copies) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self.programs: Mapping[int, Program] = {size: make(size) for size in (1, many)}
        self.copies = copies
        self._many = many

    def run(self, inputs: Sequence[Array]) -> Array:
        """`inputs` are of one shape [1, ...]; not to be called from several threads."""
        found, at = [], 0
        with torch.cuda.stream(self.stream):
            while at < len(inputs):
                size = self._many if 2 * (len(inputs) - at) >= self._many else 1
                batch = np.concatenate(inputs[at : at + size])
                program = self.programs[size]
                program.buffers.put(batch)
                program.launch()
                found.append(program.buffers.take(len(batch)))
                at += len(batch)
        return np.concatenate(found)

    def __call__(self, batch: Array) -> Array:
        """[n, ...] in and out."""
        return self.run([batch[at : at + 1] for at in range(len(batch))])


def onnx_program(model: bytes, providers: Providers, buffers: Buffers, *, profile: str = "") -> OnnxProgram:
    """Opened for the buffers' sizes.

    Args:
        providers: As for `onnx_session.open_on_card`; to "CUDAExecutionProvider" the current stream is added.
        profile: Beginning of the name of a file in which ONNX Runtime notes each node's provider; "" for none.

    Raises:
        EngineUnavailable: A provider is not there.
    """
    options = options_for(1)
    options.add_free_dimension_override_by_name(COUNT, buffers.card_in.shape[0])
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    stream = {"user_compute_stream": str(torch.cuda.current_stream().cuda_stream)}
    return OnnxProgram(
        open_on_card(model, {name: {**some, **stream} for name, some in providers.items()}, options), buffers
    )


def providers_of(name: str, folder: Path, memory_bytes: int | None) -> Providers:
    """Of an ONNX candidate.

    Args:
        name: "tensorrt-fp16" (what TensorRT cannot do, CUDA does), "cuda-fp32", "cuda-fp16", or "cuda-graph-fp16" (whose kernels
            are launched all at once).
        folder: Where TensorRT keeps its engines.
        memory_bytes: Of the card, that it may take; None for no bound.
    """
    limit = {} if memory_bytes is None else {"gpu_mem_limit": str(memory_bytes)}
    exact = {"use_tf32": "0"} if name.endswith("fp32") else {}
    graph = {"enable_cuda_graph": "1"} if "graph" in name else {}
    cuda = {CUDA: {"arena_extend_strategy": "kSameAsRequested", **limit, **exact, **graph}}
    if not name.startswith("tensorrt"):
        return cuda
    workspace = {} if memory_bytes is None else {"trt_max_workspace_size": str(memory_bytes // 2)}
    options = {
        "trt_fp16_enable": "True",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "True",
        **workspace,
    }
    return {TENSORRT: options, **cuda}


def open_card(name: str, file: Path, many: int, memory_bytes: int | None = None) -> CardSession:
    """An ONNX candidate that was kept.

    Raises:
        EngineUnavailable: Its provider is not there.
        BadModelFile: The file does not say its sizes.
    """
    model = file.read_bytes()
    graph = onnx.load_from_string(model).graph
    sizes = [
        tuple(it.dim_value for it in one.type.tensor_type.shape.dim)[1:] for one in (graph.input[0], graph.output[0])
    ]
    if not all(all(it) for it in sizes):
        raise BadModelFile(f"{file.name} does not say how large its inputs and outputs are.")
    copies, shared = Copies(), shares_memory()
    providers = providers_of(name, file.parent, memory_bytes)

    def make(size: int) -> Program:
        return onnx_program(model, providers, Buffers(((size, *sizes[0]), (size, *sizes[1])), shared, copies))

    return CardSession(make, many, copies)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a measurement on a card depends on: the card's name, its driver, and torch's version."""

    card: str
    driver: str
    torch: str


def identity() -> Identity:
    """Of the first card."""
    return Identity(torch.cuda.get_device_name(), _driver(), torch.__version__)


def _driver() -> str:
    """Its version; where there is no NVML (Jetson), the kernel module's, or else that of the interface."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        module = Path("/sys/module/nvidia/version")
        return module.read_text(encoding="ascii").strip() if module.is_file() else f"cuda-{torch.version.cuda}"


def shares_memory() -> bool:
    """Whether the card has no memory of its own."""
    return bool(torch.cuda.get_device_properties().is_integrated)


class _Address:
    """Pinned memory as CUDA's array interface describes it (version 3): its address is the same on the card."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _on_card(pinned: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the card; `pinned` must outlive it."""
    found = torch.as_tensor(_Address(pinned), device="cuda")
    assert found.data_ptr() == pinned.data_ptr()
    return found
