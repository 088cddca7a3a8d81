"""Who computes an operation that has several forms."""

from __future__ import annotations

from typing import Literal

BackEnd = Literal["native", "reference"]
"""`reference`: PyTorch, the oracle. `native`: C++ on the CPU (`kernels.native`); `NativeUnavailable` where it is not there."""
