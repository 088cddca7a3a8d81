"""Runs one real kernel on each back end that torch offers and prints what it found as JSON.

A program of its own (`python -m edgewise.cli.torch_probe`): a broken torch or driver may end it with a signal, and `doctor`
must live to say so.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from edgewise.engine.numerics import cpu_flags, native_bfloat16

_SIZE = 256
# float32 products of 256 terms of size 1 differ from float64 by some 1e-5; a tenth of that table's spread is a wrong result.
_TOLERANCE = 1e-3


def matmul_error(device: str, *, dtype: str = "float32") -> float:
    """Largest difference of a matrix product on `device` from numpy's in float64, relative to the largest entry."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((_SIZE, _SIZE)).astype(np.float32) for _ in range(2))
    expected = left.astype(np.float64) @ right.astype(np.float64)
    kind = getattr(torch, dtype)
    product = torch.from_numpy(left).to(device, kind) @ torch.from_numpy(right).to(device, kind)
    actual = product.to("cpu", torch.float64).numpy()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def cpu_report() -> dict[str, Any]:
    import torch

    begin = time.perf_counter()
    error = matmul_error("cpu")
    return {
        "ok": error < _TOLERANCE,
        "error": error,
        "bf16_native": bool(native_bfloat16(cpu_flags())),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "seconds": time.perf_counter() - begin,
    }


def cuda_report() -> dict[str, Any]:
    import torch

    if torch.version.cuda is None:
        return {"available": False, "reason": "this torch is built without CUDA", "devices": []}
    if not torch.cuda.is_available():
        return {"available": False, "reason": "torch has CUDA, but finds no usable GPU or driver", "devices": []}
    return {"available": True, "reason": "", "devices": [_gpu(index) for index in range(torch.cuda.device_count())]}


def _gpu(index: int) -> dict[str, Any]:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    error = matmul_error(f"cuda:{index}")
    return {
        "name": torch.cuda.get_device_name(index),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
        "free_bytes": free,
        "total_bytes": total,
        "bf16_native": torch.cuda.get_device_capability(index) >= (8, 0),
        "ok": error < _TOLERANCE,
        "error": error,
        "place": _place(index),
    }


def _place(index: int) -> dict[str, str] | None:
    """What the tuner's records are kept by (`kernels.tuned.Place`); None without Triton."""
    import torch

    try:
        from edgewise.kernels.triton.place import place_of
    except ImportError:
        return None
    return asdict(place_of(torch.device("cuda", index)))


def report() -> dict[str, Any]:
    import torch

    return {"torch": torch.__version__, "cpu": cpu_report(), "cuda": cuda_report()}


if __name__ == "__main__":
    print(json.dumps(report()))
