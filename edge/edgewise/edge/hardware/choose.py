"""What this machine is read with: its board or its cards, and the host around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from edgewise.edge.hardware.jetson import JetsonFiles
from edgewise.edge.hardware.jetson_stats import with_jetson_stats
from edgewise.edge.hardware.kernel import text_of
from edgewise.edge.hardware.machine import Machine
from edgewise.edge.hardware.nvidia import find_cards
from edgewise.edge.hardware.protocol import Sensors


def choose_hardware(home: Path, *, root: Path = Path("/"), nvml: Any = pynvml) -> Machine:
    """May take a second on a Jetson board, whose service is asked.

    Args:
        home: State directory, whose disk counts.
        root: Of the file system.
        nvml: The module pynvml.
    """
    sensors: list[Sensors] = []
    if "nvidia,tegra" in (text_of(root / "proc/device-tree/compatible") or ""):
        sensors.append(with_jetson_stats(JetsonFiles(root)))
    cards = find_cards(nvml)
    if cards is not None:  # after the board: its rails measure the GPU too
        sensors.append(cards)
    return Machine(home, sensors, root=root)
