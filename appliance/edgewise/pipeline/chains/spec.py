"""What a pipeline's file holds. Templates refer to inputs and to outputs of other stages as `${name}`; `$$` is a dollar sign."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from edgewise.pipeline.plan import Place, PolicyName
from edgewise.pipeline.stages import StageName

NAME = r"[a-z][a-z0-9_-]{0,63}"
PART = "part"
"""In the templates of a stage that works piece by piece: the piece."""
_REFERENCE = re.compile(r"\$(?:\$|\{(" + NAME + r")\}|(?=.|$))", re.DOTALL)

Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Precision = Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "fp8"]


class Strict(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class InputSpec(Strict):
    """One input of a pipeline. Without a default it must be given."""

    default: str | None = None
    description: str = ""


class StageSpec(Strict):
    """One stage.

    Attributes:
        kind: What it does; which kinds there are is said by `chains.kinds`.
        model: Of the store or the cloud; may refer to inputs.
        input: Templates by the fields that the kind has.
        options: As the kind has them: `max_tokens`, `steps`, ...
        over: An input or stage with text that is worked on piece by piece; `${part}` stands for a piece.
        each: What a piece is. Sentences are begun as soon as they are there, pieces of so many `tokens` when all of it is.
        tokens: Largest piece; None takes what the model's context leaves.
        parallel: Pieces at once.
        fold: Where the outputs of all pieces together are too long for one piece, work on them again, until they are not.
        join: Put between the outputs of pieces.
        after: Stages that must have ended before, besides those that templates refer to.
        where: Places where it may run; all by default.
        privacy: Label that holds besides those of the request and of what it reads; the strictest counts.
        policy, priority: As the headers of a request, for this stage alone; a priority never more urgent than the request's.
        precision: What the engine that runs it must have; "auto" takes any.
    """

    name: Name
    kind: StageName
    model: Annotated[str, Field(min_length=1, max_length=200)]
    input: dict[Name, str]
    options: dict[str, Any] = Field(default_factory=dict)
    over: Name | None = None
    each: Literal["sentence", "tokens"] | None = None
    tokens: PositiveInt | None = None
    parallel: Annotated[int, Field(ge=1, le=32)] = 2
    fold: bool = False
    join: str | None = None
    after: tuple[Name, ...] = ()
    where: Annotated[tuple[Place, ...], Field(max_length=3)] = ()
    privacy: PrivacyName = "any"
    policy: PolicyName | None = None
    priority: PriorityName | None = None
    precision: Precision = "auto"

    @property
    def separator(self) -> str:
        if self.join is not None:
            return self.join
        return " " if self.each == "sentence" else "\n\n"

    def references(self) -> dict[str, str]:
        """Names that its templates refer to, with the key of the (first) template that does; `part` is not among them."""
        found: dict[str, str] = {}
        for key, template in [("model", self.model), *((f"input.{field}", text) for field, text in self.input.items())]:
            for name in references(template):
                if name != PART:
                    found.setdefault(name, key)
        return found


class PipelineSpec(Strict):
    """One pipeline.

    Attributes:
        output: Stages whose outputs are the answer; by default those that no other stage reads.
        privacy: Label of everything in it, besides that of the request.
    """

    name: Name
    description: str = ""
    inputs: dict[Name, InputSpec] = Field(default_factory=dict)
    stages: Annotated[tuple[StageSpec, ...], Field(min_length=1, max_length=32)]
    output: tuple[Name, ...] = ()
    privacy: PrivacyName = "any"

    def stage(self, name: str) -> StageSpec:
        return next(stage for stage in self.stages if stage.name == name)


def references(template: str) -> list[str]:
    """Names in a template, in order.

    Raises:
        ValueError: A `$` that begins no reference.
    """
    names = []
    for match in _REFERENCE.finditer(template):
        if match[1] is not None:
            names.append(match[1])
        elif match[0] != "$$":
            shown = template[match.start() : match.start() + 20]
            raise ValueError(f"{shown!r} is no reference: write ${{name}}, or $$ for a dollar sign")
    return names


def fill(template: str, value: Callable[[str], str] | Mapping[str, str]) -> str:
    """The template with every reference replaced. Values are not searched for references."""
    look = value.__getitem__ if isinstance(value, Mapping) else value
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else look(match[1]), template)
