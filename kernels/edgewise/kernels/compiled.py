"""Whether the kernels of `kernels.triton` run on a device.

They are needed where the library's own kernels depend on the batch: cuBLAS and torch's sums on CUDA choose theirs by the
number of rows and products. CPUs have no use for them.
"""

from __future__ import annotations

import importlib
from functools import cache

import torch

from edgewise.core.log import get_logger

log = get_logger(__name__)


@cache
def compiled(device: torch.device) -> bool:
    """True if `tile_product` and `row_sum` take the Triton kernels on `device`.

    On CUDA the first call of a process imports Triton, compiles both kernels and runs them once. If that fails the reason
    is logged and torch's own kernels serve; `linear.tiles_invariant` measures what is in use.
    """
    if device.type != "cuda":
        return False
    reason = _why_not(device)
    if reason is not None:
        log.warning(
            "triton_unusable",
            device=str(device),
            reason=reason,
            effect="a token's last bits may depend on what else is computed",
            remedy="install triton and a C compiler, and let TRITON_CACHE_DIR name a writable folder",
        )
    return reason is None


def origin(device: torch.device) -> str:
    """What computes tile products and row sums on `device`; different origins give different bits."""
    return f"triton-{importlib.import_module('triton').__version__}" if compiled(device) else "torch"


def _why_not(device: torch.device) -> str | None:
    try:
        from edgewise.kernels.triton.trial import why_not
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    return why_not(device)
