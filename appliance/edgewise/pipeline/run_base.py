"""What every request under way has in common, whatever its engines make: parts that are pumped side by side from their streams to
one reader, an end that is told once, and what of its receipt does not depend on the kind of work."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar

from edgewise.core.errors import Cancelled, EdgewiseError, EngineFault, error_class
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.engine.request import RequestStats, link_of
from edgewise.pipeline.hooks.hooks import Passage
from edgewise.pipeline.news import News
from edgewise.pipeline.plan import Errand, Plan, PolicyName
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import Receipt, Usage, costs_of, show_plan
from edgewise.pipeline.stages import Reported, StageStream

log = get_logger(__name__)


class Named(Protocol):
    """A model, as far as a receipt tells of it."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...


class AnyTask(Protocol):
    """What `pipeline.task.Task` and its like have in common; see there."""

    @property
    def id(self) -> str: ...

    @property
    def model(self) -> Named: ...

    @property
    def key(self) -> str: ...

    @property
    def priority(self) -> Priority: ...

    @property
    def deadline_s(self) -> float | None: ...

    @property
    def privacy(self) -> Privacy: ...

    @property
    def policy(self) -> PolicyName | None: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...


class Item(Protocol):
    """A piece of one part, as its reader gets it."""

    @property
    def finish(self) -> str | None:
        """Set on the last piece of the part."""


class Part(Protocol):
    """One answer in the making. `stream` is the engine's."""

    @property
    def index(self) -> int: ...

    @property
    def stream(self) -> StageStream[Any]: ...

    @property
    def account(self) -> RequestStats | None:
        """What the engine has said of it."""


TaskT = TypeVar("TaskT", bound=AnyTask)
PartT = TypeVar("PartT", bound=Part)
ItemT = TypeVar("ItemT", bound=Item)


class RunBase(ABC, Generic[TaskT, PartT, ItemT]):
    """A request under way. `done` once every part has finished; its receipt is complete then."""

    def __init__(
        self,
        task: TaskT,
        plan: Plan,
        *,
        clock: Callable[[], float] = time.monotonic,
        passage: Passage | None = None,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.task = task
        self.plan = plan
        self._clock = clock
        self._passage = passage
        self._on_end = on_end
        self._fault = "cancelled"
        self._started_s = clock()
        self._first_s: float | None = None
        self._last_s = self._started_s
        self._parts: list[PartT] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._news: News[ItemT] = News()
        self._unfinished = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task.id}, parts={len(self._parts)}, unfinished={self._unfinished})"

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def fault(self) -> str | None:
        """Code of why it did not bring its whole answer; None once it has."""
        return None if self.done else self._fault

    @property
    def model_name(self) -> str:
        return self.task.model.name

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first token or step of any part."""
        return None if self._first_s is None else self._first_s - self._started_s

    async def receive(self, timeout_s: float | None = None) -> ItemT | None:
        """The next piece of any part; None when none came within `timeout_s`.

        Raises:
            EdgewiseError: The engine failed, or `fail` was called. The caller then closes the run.
        """
        try:
            item = await self._news.next(timeout_s)
        except EdgewiseError as error:
            self._fault = error.code
            raise
        return self._handed_out(item)

    def at_hand(self) -> ItemT | None:
        """As `receive`, without waiting: None where nothing has come, or what comes next is an error."""
        return self._handed_out(self._news.at_hand())

    def _handed_out(self, item: ItemT | None) -> ItemT | None:
        if item is not None and item.finish is not None:
            self._unfinished -= 1
            if self.done:
                self._tell_end(None)
        return item

    async def chunks(self) -> AsyncIterator[ItemT]:
        """All pieces up to the end; raises as `receive` does."""
        while not self.done:
            item = await self.receive()
            if item is not None:
                yield item

    def fail(self, error: EdgewiseError) -> None:
        """End the run with an error after what is already there; used when the service must stop."""
        for pump in self._pumps:
            pump.cancel()
        self._news.put(error)

    async def aclose(self) -> None:
        """Cancel whatever still runs: it ends within a step. Safe to call at any time, and twice.

        Whatever befalls a stream, or whoever closes the run: the other streams are closed, and the end is told.
        """
        async with AsyncExitStack() as closing:  # what is put in first comes last
            if self._passage is not None:
                closing.push_async_callback(self._passage.end, self._fault)
            closing.callback(self._tell_end, self._fault)
            closing.callback(self._news.close)
            for part in reversed(
                self._parts
            ):  # a pump that was cancelled before its first step has not closed its stream
                closing.push_async_callback(part.stream.aclose)
            await end_task(*self._pumps)

    @abstractmethod
    def usage(self) -> Usage:
        """Token counts so far."""

    @abstractmethod
    def receipt(self) -> Receipt:
        """What was done, where and how."""

    # --- for the kinds ---------------------------------------------------------------------------------------------------

    async def _start(self, parts: Sequence[Callable[[], Awaitable[PartT]]], prompt_tokens: int = 0) -> None:
        """Tell the hooks, then submit every part or none, then read them all."""
        try:
            if self._passage is not None:
                await self._passage.begin(prompt_tokens, len(parts))
            for submit in parts:
                self._parts.append(await submit())
        except BaseException as error:
            self._fault = fault_of(error)
            await self.aclose()
            raise
        self._unfinished = len(self._parts)
        self._pumps = [
            asyncio.create_task(self._pump(part), name=f"{self.task.id}/{part.index}") for part in self._parts
        ]

    @abstractmethod
    async def _take(self, part: PartT, chunk: Any) -> ItemT | None:
        """What of an engine's chunk is for the reader. Raises what the engine or a hook reports."""

    def _common(self) -> dict[str, Any]:
        """The fields of `Receipt` that every kind has, but `stages` and `warnings`."""
        task, parts = self.task, self._parts
        return {
            "request_id": task.id,
            "model": task.model.name,
            "digest": task.model.digest,
            "priority": task.priority.label,
            "privacy": task.privacy.label,
            "plan": show_plan(self.plan),
            "total_ms": round((self._last_s - self._started_s) * 1000.0, 3),
            "costs": costs_of([one.account for one in parts], [link_of(one.stream) for one in parts], self.plan.watts),
            "ignored": task.ignored,
        }

    async def _pump(self, part: PartT) -> None:
        """Move one part from the engine to the reader; close its stream in the turn in which it ends."""
        try:
            async for chunk in part.stream:
                item = await self._take(part, chunk)
                if item is not None:
                    self._news.put(item)
                    if item.finish is not None:
                        return
            self._news.put(EngineFault("The engine's stream ended without saying why: the answer is cut."))
        except EdgewiseError as error:
            self._news.put(error)
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("answer_broke", request_id=self.task.id, part=part.index)
            self._news.put(EngineFault(f"The answer broke off by an internal error ({type(error).__name__})."))
        finally:
            await part.stream.aclose()

    def _tell_end(self, fault: str | None) -> None:
        """Once, when the last piece was handed out or the run was closed before that."""
        if self._on_end is None:
            return
        tell, self._on_end = self._on_end, None
        receipt = self.receipt()
        tell(
            Outcome(
                errand=errand_of(self.task),
                model=self.task.model.name,
                plan=self.plan,
                receipt=receipt.to_dict(),
                costs=receipt.costs,
                stats=tuple(part.account for part in self._parts),
                first_s=self.first_token_s,
                total_s=self._last_s - self._started_s,
                fault=fault,
            )
        )


def errand_of(task: AnyTask) -> Errand:
    """What of a task matters to placement."""
    return Errand(
        id=task.id,
        key=task.key,
        priority=task.priority,
        privacy=task.privacy,
        deadline_s=task.deadline_s,
        policy=task.policy,
    )


def fault_of(error: BaseException) -> str:
    """How receipts and audit records call an end by `error`; what nobody has foreseen is a fault of ours."""
    if isinstance(error, EdgewiseError):
        return error.code
    return Cancelled.code if isinstance(error, asyncio.CancelledError) else EngineFault.code


def raise_reported(chunk: Reported) -> None:
    """Raise the error that an engine names, as its class in the tree; an unknown code is an engine fault."""
    if chunk.finish not in ("error", "cancelled"):
        return
    message = chunk.error_message or f"The engine ended the request: {chunk.error_code or chunk.finish}."
    if chunk.finish == "cancelled":
        raise Cancelled(message)
    raise (error_class(chunk.error_code or "") or EngineFault)(message)
