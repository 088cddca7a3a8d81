"""What the ladder needs to know of an encoder to build, judge and time its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from edgewise.models.encoders.record import Judge
from edgewise.models.encoders.weights import Array


class Session(Protocol):
    """A loaded candidate."""

    def run(self, inputs: Sequence[Any]) -> Array:
        """One row for each input, computed together: [inputs, ...] float32."""


@runtime_checkable
class Objects(Protocol):
    """A network that judges by more than the cosine."""

    def objection(self, session: Session) -> str:
        """Why a candidate that passes the gate may not serve all the same; "" where it may."""


@runtime_checkable
class Judged(Protocol):
    """A network whose inputs say more or less for its use: the record tells which they were.

    Attributes:
        judge: None where the inputs are those of every climb of its kind.
    """

    judge: Judge | None


class Network(Protocol):
    """An encoder as candidates are made of it on the CPU.

    Its products are in groups, each of which can have a form of its own; what is left out of `forms` stays float32.

    Attributes:
        judged: Real inputs that the gate and the timing read; the calibration reads others.
        gate: Least cosine to float32, over each of them.
        many: Inputs of the larger timing.
        groups: Names of all groups of products.
        units: Groups that the mixture decides about together.
        wholes: Candidates of one form throughout, by name: the form.
        absent: Candidates that this network cannot have, by name: why.
    """

    @property
    def judged(self) -> Sequence[Any]: ...

    @property
    def gate(self) -> float: ...

    @property
    def many(self) -> int: ...

    @property
    def groups(self) -> Sequence[str]: ...

    @property
    def units(self) -> Sequence[Sequence[str]]: ...

    @property
    def wholes(self) -> Mapping[str, str]: ...

    @property
    def absent(self) -> Mapping[str, str]: ...

    def calibrate(self) -> None:
        """Look at the calibration's inputs; called once, before any form but float32 is built."""

    def size(self, group: str) -> float:
        """The group's share of the work, in any unit."""

    def build(self, forms: Mapping[str, str]) -> bytes:
        """An ONNX model."""

    def open(self, model: bytes | Path) -> Session: ...
