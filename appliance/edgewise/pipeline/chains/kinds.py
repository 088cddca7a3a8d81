"""What a kind of stage is: what it reads and makes, and how one piece of its work is done. Kinds are a registry that the
composition fills, so that speech and vision come by adding theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.pipeline.plan import Place, Plan, PolicyName
from edgewise.pipeline.receipts import Usage

Medium = Literal["text", "picture", "audio"]
Value = str | bytes
"""Text, or an encoded picture or sound."""


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a kind. `reads` is what it takes: text is a template, a picture a reference and nothing else."""

    reads: Medium = "text"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One piece of a stage's work.

    Attributes:
        id: Unique; names it in logs and receipts, and to engines elsewhere.
        input: Values by the kind's fields.
        key, salt: Who asks; as of `pipeline.task.Task`, like the rest.
    """

    id: str
    model: str
    input: Mapping[str, Value]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int
    key: str = ""
    salt: str = ""
    priority: Priority = Priority.INTERACTIVE
    privacy: Privacy
    policy: PolicyName | None = None
    allowed: tuple[Place, ...] = ()
    deadline_s: float | None = None
    precision: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Items [offset, offset + count) of what a call makes: characters of text, steps of a picture.

    Attributes:
        total: Items that are expected in all; None where nobody knows.
        preview, picture: Encoded; the picture comes with the last piece.
        finish: Set on the last piece only.
    """

    offset: int
    count: int
    total: int | None = None
    text: str = ""
    preview: bytes | None = None
    picture: bytes | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """How large something is that is not there yet: tokens of text, bytes of a picture."""

    tokens: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a call would be if it were begun now.

    Attributes:
        plan: Of one stage; its engines must not be used.
        makes: How large its output is expected to be.
        why: How that is known, as the end of a sentence.
    """

    plan: Plan
    model: str
    privacy: Privacy
    makes: Size
    why: str


class Work(Protocol):
    """A call under way."""

    @property
    def privacy(self) -> Privacy:
        """The label of what it makes: the call's, or its model's where that is stricter."""

    def pieces(self) -> AsyncIterator[Piece]:
        """To the one with `finish` set. Raises an `EdgewiseError` where the call fails."""

    def receipt(self) -> Mapping[str, Any]:
        """Plain data, with `stages` as in any receipt; complete after the last piece."""

    def usage(self) -> Usage: ...

    async def aclose(self) -> None:
        """Cancel what still runs, within one step, wherever it runs. Safe to call twice."""


class Kind(Protocol):
    """One kind of stage."""

    @property
    def makes(self) -> Medium: ...

    @property
    def splits(self) -> bool:
        """Whether its models count text in tokens, so that it can be split."""

    @property
    def fields(self) -> Mapping[str, Field]: ...

    def check(self, fields: Set[str], options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for fields that do not go together, and options that it does not have or does not take so."""

    async def begin(self, call: Call) -> Work:
        """Returns once it was accepted; raises an `EdgewiseError` if it was not."""

    async def explain(self, call: Call, missing: Size) -> Outlook:
        """Where `begin` would run it and why, without running it. `missing` is by how much the call's input will be larger
        than it is. Raises as `begin`, `NoPlace` among others."""

    async def room(self, call: Call, tokens: int | None) -> int:
        """The largest piece that `split` makes.

        Raises:
            InvalidRequest: There is no room at all.
        """

    async def split(self, call: Call, text: str, tokens: int | None) -> list[str]:
        """`text` in pieces of at most `tokens` of the model, or of what its context leaves beside the rest of the call.

        Raises:
            InvalidRequest: There is no room at all.
        """


Kinds = Mapping[str, Kind]
