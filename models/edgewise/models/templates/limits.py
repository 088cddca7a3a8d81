"""What one render may cost, and the frame that parent and render process share."""

from __future__ import annotations

import struct

CPU_SECONDS = 2.0
ADDRESS_SPACE_BYTES = 512 << 20
MAX_OUTPUT_CHARS = 16 << 20
WALL_SECONDS = 60.0  # last resort on a machine that gives the render process no CPU time

FRAME = struct.Struct("<I")  # length of the JSON that follows
