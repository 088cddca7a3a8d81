"""CPU time of native products, one thread: `python -m tests.bench.native_linear [--model 135M|1B] [--rows 1 8 512] [--torch]`.

Times are the thread's own CPU time, medians of interleaved repetitions, so a busy machine disturbs them little. For few rows the
weights of several layers are walked in turn, more than the caches hold, as a decoding model does. A line per model, format,
instruction set and number of rows: the products of one layer, tokens/s of one thread if a model were nothing else, what is read
and computed a second. `--torch` adds PyTorch's own `quantized.linear_dynamic` (int8 weights per channel).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from edgewise.kernels.native import library
from edgewise.kernels.native.formats import WeightFormat, packed_bytes
from edgewise.kernels.native.packed import PackedMatrix, pack
from edgewise.kernels.native.quantized_linear import BoundCall
from tests.kernels.native.weights import fitting, packed

COLD_BYTES = 96 << 20  # more than the caches of a small server


@dataclass(frozen=True)
class Shape:
    """Products of one layer: [out, in]."""

    products: dict[str, tuple[int, int]]
    layers: int


MODELS = {
    "135M": Shape({"qkv": (960, 576), "output": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}, 30),
    "1B": Shape({"qkv": (3072, 2048), "output": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)}, 16),
}


def measured(work: Callable[[], object], repetitions: int) -> list[float]:
    """Seconds of CPU of this thread, each repetition."""
    seconds = []
    for _ in range(repetitions):
        began = time.thread_time_ns()
        work()
        seconds.append((time.thread_time_ns() - began) / 1e9)
    return seconds


def native_layers(shape: Shape, weight_format: WeightFormat, rows: int) -> list[list[PackedMatrix]]:
    """As many copies of a layer as must be walked to meet each with cold caches; one for many rows."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=generator) for size in shape.products.values()]
    size = sum(packed_bytes(out, cols, weight_format) for out, cols in shape.products.values())
    copies = 1 if rows > 16 else min(shape.layers, -(-COLD_BYTES // size))
    if weight_format.takes_floats:
        layer = [pack(weight, weight_format) for weight in weights]
    else:  # blocks of a file: any will do
        layer = [packed(weight.shape[0], weight.shape[1], weight_format, seed) for seed, weight in enumerate(weights)]
    return [layer, *([copied(matrix) for matrix in layer] for _ in range(copies - 1))]


def copied(matrix: PackedMatrix) -> PackedMatrix:
    made = PackedMatrix.zeros(matrix.rows, matrix.cols, matrix.format)
    made.data.copy_(matrix.data)
    return made


def bound(layers: list[list[PackedMatrix]], inputs: dict[int, torch.Tensor]) -> list[Callable[[], None]]:
    """The library's calls for every product of every layer."""
    outputs = {matrix.rows: torch.empty(len(inputs[matrix.cols]), matrix.rows) for matrix in layers[0]}
    matrices = [matrix for layer in layers for matrix in layer]
    return [BoundCall(inputs[matrix.cols], matrix, None, "store", outputs[matrix.rows]) for matrix in matrices]


def run_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def report(name: str, shape: Shape, rows: int, layer_seconds: float, layer_bytes: int) -> None:
    macs = rows * sum(out * cols for out, cols in shape.products.values())
    print(
        f"{name} rows {rows:4}: layer {layer_seconds * 1e6:9.1f} us  {rows / layer_seconds / shape.layers:8.1f} tok/s"
        f"  {layer_bytes / layer_seconds / 1e9:6.2f} GB/s  {macs / layer_seconds / 1e9:7.1f} GMAC/s",
        flush=True,
    )


def bench_native(model: str, rows: int, formats: list[WeightFormat], isas: list[str], repetitions: int) -> None:
    shape = MODELS[model]
    inputs = {cols: torch.randn(rows, cols) for _, cols in shape.products.values()}
    for weight_format in formats:
        if any(fitting(cols, weight_format) != cols for cols in inputs):
            print(f"{model:4} {weight_format.name:9} takes no such columns")
            continue
        layers = native_layers(shape, weight_format, rows)
        calls = bound(layers, inputs)
        seconds: dict[str, list[float]] = {isa: [] for isa in isas}
        for _ in range(repetitions):
            for isa in isas:
                library.use_isa(isa)
                seconds[isa] += measured(partial(run_all, calls), 1)
        for isa in isas:
            layer_bytes = sum(matrix.data.numel() for matrix in layers[0])
            name = f"{model:4} {weight_format.name:9} {isa:12}"
            report(name, shape, rows, statistics.median(seconds[isa]) / len(layers), layer_bytes)


def bench_torch(model: str, rows: int, repetitions: int) -> None:
    shape = MODELS[model]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [(torch.randn(rows, cols), dynamic_linear(out, cols)) for out, cols in shape.products.values()]
    seconds = measured(lambda: [module(x) for x, module in modules], repetitions)
    size = sum(out * cols for out, cols in shape.products.values())
    report(f"{model:4} {'torch int8':9} {'dynamic':12}", shape, rows, statistics.median(seconds), size)


def dynamic_linear(out: int, cols: int) -> Any:
    module: Any = torch.nn.Linear(cols, out, bias=False)
    module.qconfig = torch.ao.quantization.per_channel_dynamic_qconfig
    quantized: Any = torch.nn.quantized.dynamic.Linear
    return quantized.from_float(module)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=[*MODELS], nargs="+", default=[*MODELS])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 64, 512])
    parser.add_argument(
        "--format", choices=[f.name for f in WeightFormat], nargs="+", default=[f.name for f in WeightFormat]
    )
    parser.add_argument("--isa", nargs="+", default=[library.isa()])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--torch", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    library.set_threads(1)
    for model in args.model:
        for rows in args.rows:
            formats = [WeightFormat[name] for name in args.format]
            bench_native(model, rows, formats, args.isa, args.repetitions)
            if args.torch:
                bench_torch(model, rows, args.repetitions)


if __name__ == "__main__":
    main()
