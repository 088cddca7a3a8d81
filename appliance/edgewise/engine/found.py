"""What torch says of the devices that an engine computes on: names, families, free memory."""

from __future__ import annotations

import torch

from edgewise.engine.devices import place
from edgewise.engine.ledger import available_memory
from edgewise.engine.numerics import cpu_family
from edgewise.kernels.compiled import origin


def available_on(device: torch.device, devices: int = 1) -> int:
    """Bytes to be had; on the fullest of several GPUs. An integrated GPU shares the system's memory, so MemAvailable bounds it as
    well."""
    if device.type != "cuda":
        return available_memory()
    if devices > 1:
        return min(available_on(place.device_of(device.type, rank)) for rank in range(devices))
    free, _ = torch.cuda.mem_get_info(device)
    return available_memory() if shares_host_memory(device) else free


def shares_host_memory(device: torch.device) -> bool:
    return device.type != "cuda" or bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else f"cpu ({cpu_family()})"


def device_family(device: torch.device) -> str:
    if device.type != "cuda":
        return cpu_family()
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}-{origin(device)}"
