"""A run of one engine's work as the work of a stage: what `generate` and `diffuse` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, TypeVar

from edgewise.core.errors import InvalidRequest
from edgewise.core.privacy import Labels, Privacy
from edgewise.pipeline.chains.kinds import Call, Piece
from edgewise.pipeline.plan import Decision
from edgewise.pipeline.receipts import Usage
from edgewise.pipeline.run_base import RunBase

RunT = TypeVar("RunT", bound=RunBase[Any, Any, Any])


class RunWork(ABC, Generic[RunT]):
    """Implements `kinds.Work`."""

    def __init__(self, run: RunT) -> None:
        self.run = run

    @property
    def privacy(self) -> Privacy:
        label: Privacy = self.run.task.privacy
        return label

    @abstractmethod
    def piece(self, item: Any) -> Piece:
        """A piece of the run as one of the stage."""

    async def pieces(self) -> AsyncIterator[Piece]:
        async for item in self.run.chunks():
            yield self.piece(item)

    def receipt(self) -> Mapping[str, Any]:
        return self.run.receipt().to_dict()

    def usage(self) -> Usage:
        return self.run.usage()

    async def aclose(self) -> None:
        await self.run.aclose()


WorkT = TypeVar("WorkT", bound="RunWork[Any]")


async def precise(work: WorkT, call: Call, decision: Decision[Any]) -> WorkT:
    """The work, if its engine computes in the precision that the stage asks for; else it is closed.

    Raises:
        InvalidRequest: It computes in another one, or does not say.
    """
    if call.precision == "auto":
        return work
    info = decision.engine.info
    told = (
        []
        if info is None
        else [one for one in (info.dtype, getattr(info, "quantize", None)) if one not in (None, "none")]
    )
    if call.precision in told[-1:]:  # with rounded weights the states between products are finer than what they hold
        return work
    await work.aclose()
    says = f"computes with {' and weights of '.join(told)}" if told else "does not say what it computes with"
    raise InvalidRequest(
        f"The stage asks for precision '{call.precision}', but the engine of '{call.model}' ({decision.where}) {says}: name a "
        'model of that precision, or set precision = "auto".',
        param="precision",
    )


def label_of(call: Call, labels: Labels, names: tuple[str, ...]) -> Privacy:
    """The call's label, or its model's where that is stricter."""
    label = labels.model(names)
    return call.privacy if label is None else min(call.privacy, label)
