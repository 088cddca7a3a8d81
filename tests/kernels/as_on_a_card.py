"""What torch computes otherwise on CUDA than on a CPU, for tests on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MultipliesWithInverses(TorchDispatchMode):
    """A tensor divided by a number is multiplied with the number's inverse, as by torch on CUDA (BinaryDivTrueKernel.cu)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_):
            x, divisor = args[:2]
            if not isinstance(divisor, torch.Tensor) or divisor.dim() == 0:
                inverse = (1.0 / torch.as_tensor(divisor, dtype=x.dtype)).item()
                product = torch.ops.aten.mul if func.overloadpacket is torch.ops.aten.div else torch.ops.aten.mul_
                return product(x, inverse)
        return func(*args, **(kwargs or {}))
