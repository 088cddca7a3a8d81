"""Where a member computes and how members exchange results: the one place that knows devices and back ends."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from edgewise.core.errors import ConfigError
from edgewise.engine.devices.shares import SETTING

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_PATIENCE = timedelta(seconds=120)
"""For an exchange, as long as the service waits for a step (`engine.heartbeat.Limits`)."""


def device_of(kind: str, rank: int) -> torch.device:
    """The device of a member: a GPU each, or its share of the processor's threads."""
    return torch.device("cuda", rank) if kind == "cuda" else torch.device(kind)


def require_devices(kind: str, size: int) -> None:
    """Raise `ConfigError` where the machine has fewer devices of this kind."""
    found = torch.cuda.device_count() if kind == "cuda" else size
    if found < size:
        raise ConfigError(
            f"'{SETTING}' is {size}, but torch finds {found} CUDA device{'s' * (found != 1)} here. Set it to {found} at most, or "
            "set CUDA_VISIBLE_DEVICES so that the others are seen.",
            param=SETTING,
        )


def use(device: torch.device) -> None:
    """Make a device the one that this process computes on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def join(device: torch.device, rank: int, size: int, meeting: str) -> None:
    """Meet the other members; waits for all. What gloo sends stays on the loopback interface.

    Raises:
        RuntimeError: They do not come in time.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        _BACKENDS[device.type],
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=_PATIENCE,
        device_id=device if device.type == "cuda" else None,
    )


def part() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
