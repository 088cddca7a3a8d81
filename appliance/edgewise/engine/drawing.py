"""Draws the tokens of a step, one after the other where a sequence carries guesses.

A guess is right if it is the token that is drawn in its place, with the same logits and the same uniform number as without
guesses (a number depends on seed and position alone, `kernels.philox`). So the answer is the same to the bit, for greedy choice
as for sampling, whatever was guessed. That is stronger than the acceptance rule of Leviathan et al. (2023), which keeps the
distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import replace

import torch

from edgewise.engine.constraint import Permitted
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.kernels.philox import uniform
from edgewise.kernels.sample import Draw, RowControls, greedy, sample

Mask = Future[Permitted] | None


def draw(
    logits: torch.Tensor,
    work: Seq[Work],
    masks: Seq[Mask],
    mask_after: Callable[[Sequence, Seq[int]], Mask],
) -> list[list[Draw]]:
    """Draw for each item the token after its last known one, then one more for each guess that was right.

    Args:
        logits: [R, vocab] float32: of each item the rows of its last known token and of its guesses.
        work: Items that sample.
        masks: What the first token of each may be.
        mask_after: Begins to compute what may follow a sequence and tokens drawn since.

    Returns:
        Of each item its draws in order, 1 to 1 + guesses. All but the last are the guesses; a token that ends the answer is last.
    """
    if all(_is_simple(item, mask) for item, mask in zip(work, masks, strict=True)):
        return [[one] for one in greedy(logits)]
    draws: list[list[Draw]] = [[] for _ in work]
    firsts = [0]
    for item in work:
        firsts.append(firsts[-1] + 1 + len(item.proposed))
    active = list(range(len(work)))
    while active:
        rows = [firsts[place] + len(draws[place]) for place in active]
        controls = []
        for place in active:
            drawn = [one.token for one in draws[place]]
            mask = mask_after(work[place].sequence, drawn) if drawn else masks[place]
            controls.append(_held_to(row_controls(work[place].sequence, drawn), mask))
        picked = logits if len(rows) == logits.shape[0] else logits[torch.tensor(rows, device=logits.device)]
        for place, drawing in zip(active, sample(picked, controls), strict=True):
            draws[place].append(drawing)
        active = [place for place in active if goes_on(work[place], draws[place])]
    return draws


def _is_simple(item: Work, mask: Mask) -> bool:
    """Whether the largest logit is all that is asked for."""
    return item.sequence.plain_greedy and mask is None and not item.proposed


def goes_on(item: Work, draws: Seq[Draw]) -> bool:
    """Whether the next row of an item counts: the token that it was computed for has been drawn."""
    last = draws[-1]
    if len(draws) > len(item.proposed) or last.token != item.proposed[len(draws) - 1]:
        return False
    return last.token not in item.sequence.request.sampling.stop_token_ids


def _held_to(controls: RowControls, mask: Mask) -> RowControls:
    """The same draw within a grammar; the mask has been computed beside the forward pass."""
    if mask is None:
        return controls
    permitted = mask.result()
    return replace(controls, allowed=permitted.bits, group_from=permitted.group_from)


def row_controls(sequence: Sequence, drawn: Seq[int] = ()) -> RowControls:
    """How the token after a sequence and `drawn` is drawn. A pure function of these tokens and the request."""
    sampling = sequence.request.sampling
    position = sequence.generated + len(drawn)
    penalized = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
    output = [*sequence.tokens[len(sequence.request.prompt) :], *drawn] if penalized else ()
    return RowControls(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        uniform=uniform(sampling.seed, position) if sampling.temperature > 0.0 else 0.0,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seen=[*sequence.tokens, *drawn] if sampling.repetition_penalty != 1.0 else (),
        counts=Counter(output),
        bias=sampling.logit_bias,
        banned=sampling.stop_token_ids if position < sampling.min_tokens else (),
        top_logprobs=sampling.top_logprobs,
    )
