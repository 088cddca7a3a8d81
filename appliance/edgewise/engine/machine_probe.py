"""Prints as JSON what torch says of the CUDA device; a process of its own (`engine.machine`), since the service has no torch.

`free_bytes` is null where the GPU shares the system's memory: MemAvailable is the truth there.
"""

from __future__ import annotations

import json
from typing import Any

import torch


def report() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"cuda": False, "capability": None, "free_bytes": None}
    free, _ = torch.cuda.mem_get_info()
    integrated = bool(getattr(torch.cuda.get_device_properties(0), "is_integrated", False))
    return {
        "cuda": True,
        "capability": list(torch.cuda.get_device_capability()),
        "free_bytes": None if integrated else free,
    }


if __name__ == "__main__":
    print(json.dumps(report()))
