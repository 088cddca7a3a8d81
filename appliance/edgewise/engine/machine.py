"""What engines will find on this machine, learned without importing torch: the device they compute on, and its free memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from edgewise.core.errors import EngineUnavailable
from edgewise.core.patience import within
from edgewise.core.python import module_command
from edgewise.engine.ledger import available_memory

PROBE = "edgewise.engine.machine_probe"
PROBE_S = 60.0
_GPU_NODES = ("nvidia[0-9]*", "nvgpu*", "nvhost-gpu", "nvhost-ctrl-gpu", "nvmap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Attributes:
    cuda: Whether torch finds a usable CUDA device.
    capability: Its compute capability; None without one.
    available: Bytes that can be allocated where the engines compute.
    """

    cuda: bool
    capability: tuple[int, int] | None
    available: int


async def look(device: str, nodes: Path = Path("/dev")) -> Machine:
    """Look once, before the first engine is started.

    Args:
        device: `engine.device` of the settings. Only where it may be a GPU and one has a device node, a short-lived process
            asks torch about it, which takes as long as its import.

    Raises:
        EngineUnavailable: That process failed; the engine would too.
    """
    if device == "cpu" or not _has_gpu(nodes):
        return Machine(cuda=False, capability=None, available=available_memory())
    return _read(await _ask())


def _has_gpu(nodes: Path) -> bool:
    return any(True for pattern in _GPU_NODES for _ in nodes.glob(pattern))


async def _ask() -> bytes:
    process = await asyncio.create_subprocess_exec(
        *module_command(PROBE), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await within(process.communicate(), PROBE_S, _silent)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise EngineUnavailable(
            f"torch cannot be asked about the GPU ({last[0][:300]}): `edgewise doctor` looks for why."
        )
    return out


def _silent() -> EngineUnavailable:
    return EngineUnavailable(f"The GPU did not answer within {PROBE_S:g} s: `edgewise doctor` looks for why.")


def _read(answer: bytes) -> Machine:
    found = json.loads(answer)
    if found["free_bytes"] is None:
        return Machine(cuda=found["cuda"], capability=_pair(found["capability"]), available=available_memory())
    return Machine(cuda=True, capability=_pair(found["capability"]), available=found["free_bytes"])


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
