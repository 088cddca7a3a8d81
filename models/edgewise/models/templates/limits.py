"""What one render may cost."""

from __future__ import annotations

CPU_SECONDS = 2.0
ADDRESS_SPACE_BYTES = 512 << 20
MAX_OUTPUT_CHARS = 16 << 20
WALL_SECONDS = 60.0  # last resort on a machine that gives the render process no CPU time
