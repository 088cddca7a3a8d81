"""One stage of a chain under way: waits for what it reads, works on it whole or piece by piece, and passes on what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.core.errors import ContextLengthExceeded
from edgewise.core.patience import end_task
from edgewise.core.priority import Priority, priority_of
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.pipeline.chains.kinds import Call, Kinds, Piece, Value, Work
from edgewise.pipeline.chains.output import Output
from edgewise.pipeline.chains.spec import PART, StageSpec, fill
from edgewise.pipeline.plan import PolicyName
from edgewise.pipeline.receipts import Usage
from edgewise.pipeline.seeds import sequence_seed

_FOLDS = 8
"""Rounds after which texts that do not get shorter are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request to a pipeline.

    Attributes:
        input: Texts by the names of the pipeline's inputs.
        seed: Stages and pieces derive theirs from it.
    """

    id: str
    input: Mapping[str, str]
    seed: int
    key: str = ""
    salt: str = ""
    priority: Priority = Priority.INTERACTIVE
    privacy: Privacy = Privacy.PRIVATE
    policy: PolicyName | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChainPiece:
    """A piece of one stage's output.

    Attributes:
        part: Counts the pieces of text that the stage works on, from 0.
        draft: The stage reads this again itself (`fold`): it is no part of its output.
    """

    stage: str
    part: int
    piece: Piece
    draft: bool = False


@dataclass(slots=True)
class Record:
    """What is told of a stage in the receipt; times in seconds from the chain's start, the rest by part."""

    privacy: Privacy
    model: str
    began_s: float | None = None
    ended_s: float | None = None
    receipts: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    usages: dict[int, Usage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the stages of one chain share.

    Attributes:
        offer: Takes news for the caller.
        left_s: Seconds until the deadline; raises where it has passed.
        now_s: Seconds since the chain's start.
        works: Those that are not closed yet.
    """

    kinds: Kinds
    asked: Asked
    inputs: Mapping[str, str]
    outputs: Mapping[str, Output]
    records: Mapping[str, Record]
    offer: Callable[[ChainPiece], None]
    left_s: Callable[[], float | None]
    now_s: Callable[[], float]
    works: set[Work]


class StageRun:
    """Args:
    number: Place of the stage in the pipeline's order.
    """

    def __init__(self, scene: Scene, number: int, stage: StageSpec) -> None:
        self._scene = scene
        self._number = number
        self._stage = stage
        self._kind = scene.kinds[stage.kind]
        self._output = scene.outputs[stage.name]
        self._record = scene.records[stage.name]
        self._values: dict[str, Value] = {}

    async def run(self) -> None:
        """Raises an `EdgewiseError` where the stage fails. Cancelling this closes all of its work."""
        stage, scene = self._stage, self._scene
        for name in stage.after:
            await scene.outputs[name].closed()
        for name in stage.references():
            self._values[name] = await self._value(name)
        self._inherit([*stage.after, *self._values])
        if stage.over is None:
            await self._one("", 0, self._output)
        elif stage.each == "sentence":
            await self._each(self._sentences(stage.over), self._output)
        else:
            await self._split(stage.over)
        self._output.close()

    async def _value(self, name: str) -> Value:
        return self._scene.inputs[name] if name in self._scene.inputs else await self._scene.outputs[name].whole()

    def _inherit(self, read: Iterable[str]) -> None:
        """Give the output the strictest label of what goes into it."""
        labels = [self._scene.outputs[name].privacy for name in read if name in self._scene.outputs]
        self._tighten(self._output, privacy_of(self._stage.privacy), *labels)

    def _tighten(self, output: Output, *labels: Privacy) -> None:
        output.privacy = min(output.privacy, *labels)
        self._record.privacy = min(self._record.privacy, output.privacy)

    # --- piece by piece ---------------------------------------------------------------------------------------------------

    async def _sentences(self, over: str) -> AsyncGenerator[str, None]:
        source = self._scene.outputs.get(over)
        if source is None:
            source = Output(self._output.privacy)
            source.feed(self._scene.inputs[over])
            source.close()
        async for sentence in source.sentences():
            self._inherit([over])  # known once there is something to read
            yield sentence

    async def _split(self, over: str) -> None:
        """Pieces of tokens; with `fold`, again and again until one piece holds all."""
        stage, text, first = self._stage, str(await self._value(over)), 0
        self._inherit([over])
        for _ in range(_FOLDS):
            parts = await self._kind.split(self._call("", first, self._output.privacy), text, stage.tokens) or [""]
            if not stage.fold or len(parts) == 1:
                await self._each(_listed(parts), self._output, first)
                return
            folded = Output(self._output.privacy)
            await self._each(_listed(parts), folded, first, draft=True)
            self._tighten(self._output, folded.privacy)
            if len(folded.text) >= len(text):
                break
            text, first = folded.text, first + len(parts)
        raise ContextLengthExceeded(
            "What the pieces come to does not get short enough to be read in one: lower the `max_tokens` of this stage or of the "
            "one that it reads.",
            param="input",
        )

    async def _each(
        self, parts: AsyncGenerator[str, None], output: Output, first: int = 0, *, draft: bool = False
    ) -> None:
        """`parallel` pieces at once; their outputs follow each other in the order of pieces. The first that fails ends all, also
        while the text that they come from is still being written."""
        crew = _Crew()
        crew.spawn(self._begin_each(crew, parts, output, first, draft=draft))
        await crew.run()

    async def _begin_each(
        self, crew: _Crew, parts: AsyncGenerator[str, None], output: Output, first: int, *, draft: bool
    ) -> None:
        places = asyncio.Semaphore(self._stage.parallel)
        joined: asyncio.Task[None] | None = None
        count = first
        async with aclosing(parts):
            async for part in parts:
                await places.acquire()
                own = Output(output.privacy)
                crew.spawn(self._piece(part, count, own, places, draft=draft))
                separator = "" if joined is None else self._stage.separator
                joined = crew.spawn(self._join(own, output, joined, separator))
                count += 1

    async def _piece(self, part: str, count: int, own: Output, places: asyncio.Semaphore, *, draft: bool) -> None:
        try:
            await self._one(part, count, own, draft=draft)
            own.close()
        finally:
            places.release()

    async def _join(self, own: Output, output: Output, before: asyncio.Task[None] | None, separator: str) -> None:
        """Pass a piece's output on once those before it have been."""
        if before is not None:
            await asyncio.wait({before})
        async for text in own.texts():
            self._tighten(output, own.privacy)
            output.feed(separator + text)
            separator = ""
        for media in own.media:
            self._tighten(output, own.privacy)
            output.keep(media)

    async def _one(self, part: str, count: int, output: Output, *, draft: bool = False) -> None:
        """One piece, from its call to its last chunk."""
        record, name = self._record, self._stage.name
        work = await self._kind.begin(self._call(part, count, output.privacy))
        self._scene.works.add(work)
        try:
            if record.began_s is None:
                record.began_s = self._scene.now_s()
            self._tighten(output, work.privacy)
            async for piece in work.pieces():
                output.feed(piece.text)
                if piece.picture is not None:
                    output.keep(piece.picture)
                self._scene.offer(ChainPiece(name, count, piece, draft))
            record.receipts[count], record.usages[count] = work.receipt(), work.usage()
        finally:
            await work.aclose()
            self._scene.works.discard(work)

    def _call(self, part: str, count: int, label: Privacy) -> Call:
        values = {**self._values, PART: part}
        call = call_of(self._scene.asked, self._number, self._stage, values, count)
        return replace(call, model=self._record.model, privacy=label, deadline_s=self._scene.left_s())


def call_of(asked: Asked, number: int, stage: StageSpec, values: Mapping[str, Value], count: int) -> Call:
    """One piece of a stage's work, as far as the request and the pipeline's file tell.

    Args:
        values: Of everything that its templates refer to.
        count: Counts pieces, from 0.
    """
    priority = asked.priority if stage.priority is None else max(asked.priority, priority_of(stage.priority))
    return Call(
        id=f"{asked.id}/{stage.name}/{count}",
        model=fill(stage.model, lambda name: str(values[name])),
        input={name: _filled(template, values) for name, template in stage.input.items()},
        options=stage.options,
        seed=sequence_seed(asked.seed, number * 2**20 + count),
        key=asked.key,
        salt=asked.salt,
        priority=priority,
        privacy=asked.privacy,
        policy=stage.policy or asked.policy,
        allowed=stage.where,
        deadline_s=asked.deadline_s,
        precision=stage.precision,
    )


def _filled(template: str, values: Mapping[str, Value]) -> Value:
    """A template's text, or the picture that it names."""
    for name, value in values.items():
        if isinstance(value, bytes) and template == f"${{{name}}}":
            return value
    return fill(template, lambda name: str(values[name]))


async def _listed(parts: Iterable[str]) -> AsyncGenerator[str, None]:
    for part in parts:
        yield part


class _Crew:
    """Tasks that work together: `run` returns once all have ended, and ends all when one fails."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def run(self) -> None:
        """Raises what the first task that failed raised. Cancelling this ends them all."""
        try:
            (await self._over).result()
        finally:
            tasks = [*self._tasks]
            await end_task(*tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failed = task.cancelled() or task.exception() is not None
        if (failed or not self._tasks) and not self._over.done():
            self._over.set_result(task)
