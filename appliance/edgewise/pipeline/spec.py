"""Which stages a model's pipeline has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgewise.pipeline.model import ServedModel

StageName = Literal["generate"]


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: what is done, with which model."""

    name: StageName
    model: ServedModel


def stages_of(model: ServedModel) -> tuple[StageSpec, ...]:
    """The pipeline of a text model is one stage."""
    return (StageSpec("generate", model),)
