"""Where the stages of a pipeline would run and why, without running any of them.

What a stage reads from another one is not there yet: its size is estimated from what that stage is expected to make, and the
report says so (`estimates`). Labels flow as they do in a chain that runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.core.errors import EdgewiseError, NoPlace
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.pipeline.chains.chain import inputs_of, named
from edgewise.pipeline.chains.kinds import Call, Kind, Kinds, Outlook, Size, Value
from edgewise.pipeline.chains.load import Pipeline
from edgewise.pipeline.chains.parts import Sentences
from edgewise.pipeline.chains.spec import PART, StageSpec, references
from edgewise.pipeline.chains.stage_run import Asked, call_of
from edgewise.pipeline.receipts import show_plan

SENTENCE_TOKENS = 20
"""Of a sentence that is not written yet."""
_UNKNOWN = Size(tokens=256)
"""Of what a stage makes that could not be planned."""
_STAND_IN = "."
"""For text that is not there yet: an empty prompt is none."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What a stage is expected to make; `text` says it in a sentence."""

    medium: str
    size: Size
    privacy: Privacy
    text: str


@dataclass(frozen=True, slots=True)
class _Parts:
    """Pieces that a stage works on: how many, and one of them, as far as it is there; `missing` is the size of the rest."""

    count: int = 1
    part: str = _STAND_IN
    missing: int = 0


@dataclass(slots=True)
class _Look:
    """One stage under consideration."""

    pipeline: Pipeline
    kind: Kind
    asked: Asked
    number: int
    stage: StageSpec
    inputs: Mapping[str, str]
    made: Mapping[str, _Made]
    estimates: list[str] = field(default_factory=list)

    async def report(self) -> tuple[dict[str, Any], _Made]:
        stage = self.stage
        read = [self.made[name] for name in self._reads()]
        own = (self.asked.privacy, privacy_of(self.pipeline.spec.privacy), privacy_of(stage.privacy))
        label = min(*own, *(one.privacy for one in read))
        self.estimates += [one.text for one in read]
        call = replace(self._call(_STAND_IN), privacy=label)
        parts = await self._parts(call)
        call = replace(self._call(parts.part), privacy=label)
        told = {"name": stage.name, "kind": stage.kind, "model": call.model, "parts": parts.count}
        told |= {"parallel": min(stage.parallel, parts.count), "estimates": self.estimates}
        try:
            outlook = await self.kind.explain(call, self._missing(parts))
        except NoPlace as error:
            nowhere: dict[str, Any] = {
                "stage": stage.kind,
                "where": None,
                "why": error.message,
                "predicted": None,
                "candidates": [],
            }
            unknown = _Made(
                self.kind.makes, _UNKNOWN, label, f"Of '{stage.name}' nothing is known: it can run nowhere."
            )
            return {**told, "privacy": label.label, "predicted": None, **nowhere}, unknown
        shown = show_plan(outlook.plan)
        told |= {"model": outlook.model, "privacy": outlook.privacy.label, "policy": shown["policy"]}
        return {**told, "measured": shown["measured"], **shown["stages"][0]}, self._made(outlook, parts.count)

    def _reads(self) -> list[str]:
        """Stages whose outputs it reads or waits for."""
        stage = self.stage
        names = [*stage.after, *stage.references(), *([stage.over] if stage.over else ())]
        return [name for name in dict.fromkeys(names) if name in self.made]

    def _call(self, part: str) -> Call:
        """What is not there yet is as good as empty."""
        values: dict[str, Value] = {**self.inputs, PART: part}
        values |= {name: _STAND_IN if made.medium == "text" else b"" for name, made in self.made.items()}
        return call_of(self.asked, self.number, self.stage, values, 0)

    def _missing(self, parts: _Parts) -> Size:
        """How much larger the call's input will be than `_call` makes it."""
        names = [name for template in self.stage.input.values() for name in references(template)]
        sizes = [self.made[name].size for name in names if name in self.made]
        tokens = sum(size.tokens for size in sizes) + names.count(PART) * parts.missing
        return Size(tokens=tokens, bytes=sum(size.bytes for size in sizes))

    async def _parts(self, call: Call) -> _Parts:
        """Its pieces: counted where the text is there, else as many as one of the expected length would have."""
        stage = self.stage
        if stage.over is None:
            return _Parts()
        if stage.over in self.inputs:
            text = self.inputs[stage.over]
            parts = _sentences(text) if stage.each == "sentence" else await self.kind.split(call, text, stage.tokens)
            return _Parts(max(1, len(parts)), max(parts, key=len, default=_STAND_IN))
        expected = self.made[stage.over].size.tokens
        limit = SENTENCE_TOKENS if stage.each == "sentence" else await self.kind.room(call, stage.tokens)
        count = max(1, math.ceil(expected / limit))
        self.estimates.append(f"That makes about {count} pieces, of which the figures of one are shown.")
        return _Parts(count, missing=min(expected, limit))

    def _made(self, outlook: Outlook, count: int) -> _Made:
        name, size = self.stage.name, outlook.makes
        if self.kind.makes == "text":
            whole = Size(tokens=count * size.tokens)
            text = f"The text of '{name}' is not there yet: {whole.tokens} tokens are expected ({outlook.why})."
        else:
            whole = Size(bytes=size.bytes)
            text = f"What '{name}' makes is not there yet: {whole.bytes} bytes are expected ({outlook.why})."
        return _Made(self.kind.makes, whole, outlook.privacy, text)


async def explain_pipeline(pipeline: Pipeline, kinds: Kinds, asked: Asked) -> dict[str, Any]:
    """Every stage in its order, with all candidates, and the figures of one piece where it works on several.

    A stage that can run nowhere has no `where`; `why` says for each place what rules it out.

    Raises:
        InvalidRequest: An input is missing or unknown.
        EdgewiseError: A stage cannot be what its file says, as without its model; the message names it.
    """
    inputs = inputs_of(pipeline, asked.input)
    made: dict[str, _Made] = {}
    stages = []
    for number, stage in enumerate(pipeline.order):
        look = _Look(pipeline, kinds[stage.kind], asked, number, stage, inputs, made)
        try:
            shown, made[stage.name] = await look.report()
        except EdgewiseError as error:
            raise named(error, stage) from None
        stages.append(shown)
    measured: dict[str, Any] = next((stage["measured"] for stage in reversed(stages) if stage.get("measured")), {})
    return {
        "pipeline": pipeline.spec.name,
        "privacy": min(asked.privacy, *(made[stage.name].privacy for stage in pipeline.order)).label,
        "priority": asked.priority.label,
        "measured": measured,
        "stages": [{key: value for key, value in stage.items() if key != "measured"} for stage in stages],
    }


def _sentences(text: str) -> list[str]:
    cutter = Sentences()
    return [*cutter.feed(text), *cutter.end()]
