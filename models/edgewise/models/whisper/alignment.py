"""Where in a recording each token of its text is spoken, read off the decoder's attention to the sound.

As OpenAI's `whisper/timing.py` does it: weights of the heads that follow the sound, each frame's normalised over the tokens, a
median filter along time, the mean of the heads, and the cheapest monotone path through that (dynamic time warping; Sakoe and
Chiba 1978).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

MEDIAN_WIDTH = 7
"""Frames that the filter looks at."""
_LEAST_SPREAD = 1e-30
"""Divides a frame that no token attends to, whose weights are all zero."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def token_frames(scores: Iterable[torch.Tensor], first: int, last: int) -> list[int]:
    """The frame at which each row's token begins.

    Args:
        scores: Of each head in turn, [tokens, frames] float32, before the softmax over frames. Taken one at a time, since
            those of all heads together would be large.
        first, last: Rows whose place is asked, the others only count in the normalisation.

    Returns:
        `last - first` frames, none before the one before it.
    """
    heads = [_evidence(one) for one in scores]
    return first_frames(torch.stack(heads).mean(dim=0)[first:last].double().cpu().numpy())


def _evidence(scores: torch.Tensor) -> torch.Tensor:
    """One head's weights, normalised and filtered: [tokens, frames] float32."""
    weights = scores.softmax(dim=-1)
    spread, mean = torch.std_mean(weights, dim=0, keepdim=True, correction=0)
    return median_filter((weights - mean) / spread.clamp_min(_LEAST_SPREAD))


def median_filter(rows: torch.Tensor, width: int = MEDIAN_WIDTH) -> torch.Tensor:
    """The median of `width` neighbours along the last dimension, rows mirrored at their ends; short rows stay as they are.

    Args:
        rows: [n, frames].
        width: Odd.
    """
    half = width // 2
    if rows.shape[-1] <= half:
        return rows
    padded = functional.pad(rows[None], (half, half), mode="reflect")[0]
    return padded.unfold(-1, width, 1).sort(dim=-1).values[..., half].contiguous()


def first_frames(evidence: Floats) -> list[int]:
    """The first frame of each row on the path of most evidence from the first row and frame to the last ones.

    A step goes to the next row, the next frame, or both.

    Args:
        evidence: [rows, frames], finite.
    """
    rows, frames = evidence.shape
    step = _steps(-evidence)
    found = [0] * rows
    row, frame = rows, frames
    while row > 0:
        found[row - 1] = max(frame - 1, 0)
        taken = int(step[row, frame]) if frame else 1
        row -= taken != 2
        frame -= taken != 1
    return found


def _steps(cost: Floats) -> Ints:
    """How the cheapest path comes to each cell: 0 from both before, 1 from the row before, 2 from the frame before.

    [rows + 1, frames + 1]. Cells of one diagonal do not depend on each other and are computed together. Costs are summed in
    float32, and ties go to the frame before, as in OpenAI's code.
    """
    rows, frames = cost.shape
    steps = np.full((rows + 1, frames + 1), 2, dtype=np.int64)
    steps[1:, 0] = 1
    before = np.full(
        rows + 1, np.inf, dtype=np.float32
    )  # total costs of the diagonal before, by row; and the one before that
    before_that = before.copy()
    before_that[0] = 0.0
    for diagonal in range(2, rows + frames + 1):
        row = np.arange(max(1, diagonal - frames), min(rows, diagonal - 1) + 1)
        both, up, left = before_that[row - 1], before[row - 1], before[row]
        from_both, from_up = (both < up) & (both < left), (up < both) & (up < left)
        least = np.where(from_both, both, np.where(from_up, up, left))
        steps[row, diagonal - row] = np.where(from_both, 0, np.where(from_up, 1, 2))
        now = np.full(rows + 1, np.inf, dtype=np.float32)
        now[row] = cost[row - 1, diagonal - row - 1] + least
        before_that, before = before, now
    return steps
