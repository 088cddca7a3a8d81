"""JSON text for bodies and events."""

from __future__ import annotations

import json
from typing import Any

_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON, never NaN. Characters that some clients take for line ends are escaped: an event stays one line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_LINE_BREAKS).encode("utf-8")
