"""What the steps around a network need to know of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Network(Protocol):
    """Float32 [n, 3, height, width] in, one output."""

    def __call__(self, pictures: Floats, /) -> Floats: ...
