"""What a job may cost at most: reserved in its row when it comes in, so that a quota holds while jobs wait and run.

The reservation counts as long as the job is open, and its bill takes its place in the transaction that ends the job. Nothing
else holds it, so a crash can neither lose nor leak one.
"""

from __future__ import annotations

from typing import NamedTuple

from edgewise.cloud.work import diffuse_params, sampling_params
from edgewise.wire.messages import Capability, DiffuseWork, Work

DEFAULT_STEPS = 50
"""Reckoned for a picture that leaves its steps to the model."""


class Most(NamedTuple):
    """Upper bounds of tokens and money. `seconds` is an estimate: by the model's measured speed, 0 before anything was."""

    tokens: int = 0
    seconds: float = 0.0
    price: float = 0.0


def most_of(work: Work, model: Capability) -> Most:
    """Of a job, as far as its request tells.

    Raises:
        InvalidRequest: A parameter is missing, unknown or of the wrong type.
    """
    if isinstance(work, DiffuseWork):
        steps = diffuse_params(work).steps or DEFAULT_STEPS
        return Most(seconds=_seconds(steps, model.speed), price=steps * model.price_out / 1000)
    prompt = len(work.prompt) or len((work.text or "").encode())  # a token has one byte at least
    answer = max(0, sampling_params(work).max_tokens - len(work.output))
    if model.context is not None:
        prompt = min(prompt, model.context)
        answer = min(answer, model.context - prompt)
    return Most(
        tokens=prompt + answer,
        seconds=_seconds(prompt, model.prefill) + _seconds(answer, model.speed),
        price=(prompt * model.price_in + answer * model.price_out) / 1000,
    )


def _seconds(items: int, speed: float | None) -> float:
    return items / speed if speed else 0.0
