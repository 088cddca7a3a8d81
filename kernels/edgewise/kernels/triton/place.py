"""Which card and which software this is: what a measurement holds for."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import triton

from edgewise.kernels.tuned import Place, source_digest

_DRIVER = Path("/proc/driver/nvidia/version")


def place_of(device: torch.device) -> Place:
    """The place of a CUDA device."""
    major, minor = torch.cuda.get_device_capability(device)
    return Place(
        card=torch.cuda.get_device_name(device),
        capability=f"{major}.{minor}",
        driver=driver_version(),
        torch=torch.__version__,
        triton=triton.__version__,
        sources=source_digest(),
    )


def driver_version(file: Path = _DRIVER) -> str:
    """The kernel driver's version; where it does not say (a Jetson), the version of CUDA that it offers."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return found.group() if found else f"cuda {torch._C._cuda_getDriverVersion()}"  # type: ignore[attr-defined]
