"""Draw one token per row of logits.

Each row is worked on alone, with operations whose shape depends on nothing but the vocabulary, so a row's token never depends
on its neighbours. The draw inverts the cumulative distribution, in order of token id, at one uniform number that the caller
derives from (seed, position). Filters apply in the order of Hugging Face transformers: penalties and bias, temperature,
top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edgewise.kernels.back_end import BackEnd
from edgewise.kernels.native import library
from edgewise.kernels.native import sample as native
from edgewise.kernels.row_controls import RowControls

__all__ = ["Draw", "RowControls", "greedy", "sample"]


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn token; `logprob` and `top` (id, logprob) are filled when log probabilities were asked for.

    `broken` rows had NaN or no finite logit at all, `stuck` rows no finite logit among the allowed ids: no token was drawn,
    `token` is -1.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    broken: bool = False
    stuck: bool = False


def sample(logits: torch.Tensor, controls: Sequence[RowControls], back_end: BackEnd | None = None) -> list[Draw]:
    """Draw a token for each row.

    Args:
        logits: [rows, vocab] float32.
        controls: One per row.
        back_end: None for "native" where logits are on the CPU and the library is there, else "reference". Both draw the same
            token, but where the uniform number falls between two ids to within the rounding of sums in float64.

    Returns:
        One `Draw` per row, in order.

    Raises:
        ValueError: Shapes or dtype are wrong, or controls name an id outside the vocabulary.
        NativeUnavailable: "native" was asked for and there is no library.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits must be [rows, vocab] float32, got {tuple(logits.shape)} {logits.dtype}")
    if logits.shape[0] != len(controls):
        raise ValueError(f"{logits.shape[0]} rows of logits for {len(controls)} rows of controls")
    if back_end is None:
        back_end = "native" if logits.device.type == "cpu" and library.why_not() is None else "reference"
    if back_end == "native":
        logits = logits.contiguous()
    best = _largest(logits)
    return [_draw(logits[row], best[row], control, back_end) for row, control in enumerate(controls)]


def greedy(logits: torch.Tensor) -> list[Draw]:
    """`sample` where every row takes its largest logit, the lowest id of several, and nothing else is asked for.

    Args:
        logits: [rows, vocab] float32.
    """
    if logits.device.type != "cpu":
        return sample(logits, [RowControls()] * logits.shape[0])
    rows = logits.numpy()
    best = rows.argmax(axis=1).tolist()
    return [Draw(token) if math.isfinite(rows[row, token]) else Draw(-1, broken=True) for row, token in enumerate(best)]


def _largest(logits: torch.Tensor) -> list[int]:
    """The id of each row's largest logit, the lowest of several; NaN counts as the largest.

    On the CPU by numpy, which does this with one thread in a fiftieth of the time that torch takes (4 us for a row of 49,152).
    """
    rows = logits.numpy() if logits.device.type == "cpu" else logits
    found: list[int] = rows.argmax(-1).tolist()
    return found


def _draw(row: torch.Tensor, best: int, control: RowControls, back_end: BackEnd) -> Draw:
    # argmax puts NaN first, so one look at the winner finds a poisoned row
    if not math.isfinite(float(row[best])):
        return Draw(-1, broken=True)
    if control.plain_greedy:
        token = best
    elif back_end == "native":
        token = native.draw(row, control)
    else:
        token = _choose(_adjust(row, control), control)
    if token < 0:
        return Draw(-1, stuck=True)
    if control.top_logprobs is None:
        return Draw(token)
    return _with_logprobs(row, token, control.top_logprobs)


def _adjust(row: torch.Tensor, control: RowControls) -> torch.Tensor:
    """Penalties, bias, the allowed ids and bans, in float64."""
    x = row.to(torch.float64, copy=True)
    if control.repetition_penalty != 1.0 and control.seen:
        ids = torch.tensor(sorted(set(control.seen)), device=x.device)
        values = x[ids]
        x[ids] = torch.where(values > 0, values / control.repetition_penalty, values * control.repetition_penalty)
    if (control.presence_penalty or control.frequency_penalty) and control.counts:
        ids = torch.tensor(list(control.counts.keys()), device=x.device)
        times = torch.tensor(list(control.counts.values()), dtype=x.dtype, device=x.device)
        x[ids] -= control.presence_penalty + control.frequency_penalty * times
    if control.bias:
        ids = torch.tensor(list(control.bias.keys()), device=x.device)
        x[ids] += torch.tensor(list(control.bias.values()), dtype=x.dtype, device=x.device)
    if control.allowed is not None:
        x.masked_fill_(~_unpack(control.allowed, x.numel(), x.device), -math.inf)
    if control.banned:
        rest = x.index_fill(0, torch.tensor(list(control.banned), device=x.device), -math.inf)
        x = rest if control.allowed is None or float(rest.max()) > -math.inf else x
    first = control.group_from
    if first is not None and float(x[first:].logsumexp(0)) > float(x[:first].max()):
        x[:first] = -math.inf
    return x


def _unpack(bits: bytes, count: int, device: torch.device) -> torch.Tensor:
    """[count] bool from one bit per element, the lowest bit of the first byte first; False beyond the end of `bits`."""
    size = -(-count // 8)
    packed = torch.frombuffer(bytearray(bits[:size].ljust(size, b"\0")), dtype=torch.uint8).to(device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((packed[:, None] >> shifts) & 1).flatten()[:count].bool()


def _choose(x: torch.Tensor, control: RowControls) -> int:
    """The drawn id; -1 when nothing can be drawn."""
    if control.allowed is not None and float(x.max()) == -math.inf:
        return -1
    if control.temperature == 0.0:
        return int(x.argmax())
    x = (x - x.max()) / control.temperature
    if control.top_k and control.top_k < x.numel():
        x = _keep_top_k(x, control.top_k)
    if control.top_p < 1.0:
        x = _keep_top_p(x, control.top_p)
    if control.min_p > 0.0:
        x = x.masked_fill(x < math.log(control.min_p), -math.inf)  # the largest is exactly 0 here
    mass = x.exp().cumsum(0)
    target = control.uniform * float(mass[-1])
    choice = int(torch.searchsorted(mass, torch.tensor(target, dtype=mass.dtype, device=mass.device), right=True))
    # Rounding may carry the target to the very end; the last token with mass is then the right one.
    return choice if choice < x.numel() else int(torch.nonzero(x > -math.inf)[-1])


def _keep_top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest; among equals at the border the lowest ids."""
    border = x.topk(k).values[-1]
    above = x > border
    ties = torch.nonzero(x == border).flatten()[: k - int(above.sum())]
    keep = above
    keep[ties] = True
    return x.masked_fill(~keep, -math.inf)


def _keep_top_p(x: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of most probable tokens whose mass reaches top_p; ties by lowest id.

    Tokens with probability below (1 - top_p) / vocab together weigh less than 1 - top_p, so none of them can be in the set:
    only the rest is sorted.
    """
    p = x.softmax(0)
    candidates = torch.nonzero(p >= (1.0 - top_p) / p.numel()).flatten()
    order = p[candidates].sort(descending=True, stable=True)
    before = order.values.cumsum(0) - order.values
    kept = candidates[order.indices[before < top_p]]
    filtered = torch.full_like(x, -math.inf)
    filtered[kept] = x[kept]
    return filtered


def _with_logprobs(row: torch.Tensor, token: int, top: int) -> Draw:
    logprobs = row.to(torch.float64).log_softmax(0)
    if top == 0:
        return Draw(token, float(logprobs[token]))
    best = logprobs.topk(top)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Draw(token, float(logprobs[token]), tuple(pairs))
