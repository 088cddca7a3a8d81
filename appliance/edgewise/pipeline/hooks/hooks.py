"""The enabled hooks, and one request on its way through them. Every request for texts, vectors, pictures or speech goes this
way, by the module of the pipeline that carries it out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import ContentRefused, EdgewiseError, HookFailed
from edgewise.core.log import get_logger
from edgewise.core.patience import within
from edgewise.pipeline.hooks.gate import Gate, HeldText
from edgewise.pipeline.hooks.protocol import Answer, AuditRecord, Call, Hook, PromptText, TextFilter
from edgewise.pipeline.hooks.texts import prompt_texts, with_texts
from edgewise.pipeline.task import Task
from edgewise.pipeline.text import TextChunk

log = get_logger(__name__)
Result = TypeVar("Result")


class Hooks:
    """Args:
    on_error: What a hook's fault does: "refuse" ends the request, "allow" goes on without the hook's word.
    timeout_s: A hook that takes longer has failed.
    """

    def __init__(
        self,
        hooks: Sequence[Hook] = (),
        *,
        on_error: Literal["refuse", "allow"] = "refuse",
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._hooks = tuple(hooks)
        self._on_error = on_error
        self._timeout_s = timeout_s
        self.clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"Hooks({', '.join(hook.name for hook in self._hooks)})"

    def __bool__(self) -> bool:
        return bool(self._hooks)

    @property
    def wants_text(self) -> bool:
        return any(hook.wants_text for hook in self._hooks)

    async def admit(self, task: Task) -> tuple[Task, Passage | None]:
        """The task as the model shall see it, and what follows it through its answer.

        Raises:
            ContentRefused: A hook refuses the prompt. HookFailed: A hook failed.
        """
        if not self._hooks:
            return task, None
        call = Call(request_id=task.id, key=task.key, model=task.model.name, digest=task.model.digest)
        texts, passage = await self.admit_texts(call, prompt_texts(task))
        return with_texts(task, texts), passage

    async def admit_texts(self, call: Call, texts: list[PromptText]) -> tuple[list[PromptText], Passage]:
        """The texts of a prompt as the model shall see them, and what follows the request. Raises as `admit`."""
        try:
            for hook in self._hooks:
                texts = await self._ask(hook, call, texts)
        except EdgewiseError as error:
            refused = AuditRecord(
                event="refused",
                time=self.clock.time(),
                call=call,
                prompt_sha256=_digest(texts),
                outcome=error.code,
                prompt_text=_joined(texts) if self.wants_text else None,
            )
            await self.note(refused)
            raise
        return texts, Passage(self, call, texts)

    async def aclose(self) -> None:
        for hook in self._hooks:
            await hook.aclose()

    def filters(self, call: Call) -> list[TextFilter]:
        """Fresh filters for one text. Raises `HookFailed`."""
        found = []
        for hook in self._hooks:
            try:
                one = hook.watch(call)
            except Exception as error:  # noqa: BLE001 - a plug-in's fault of any kind
                self._failed(hook, "watch", error)
                continue
            if one is not None:
                found.append(one)
        return found

    async def check(self, one: TextFilter, text: str, start: int, last: bool) -> int | None:
        return await self._guarded(type(one).__name__, "check", one.check(text, start, last=last), None)

    async def audit(self, record: AuditRecord) -> None:
        """Tell every hook, with texts only those that want them. Raises what `_guarded` raised first, when all were told: what
        one hook has of a request, the others have too."""
        answers = tuple(replace(answer, text=None) for answer in record.answers)
        plain = replace(record, prompt_text=None, answers=answers)
        faults = []
        for hook in self._hooks:
            try:
                await self._guarded(hook.name, "audit", hook.audit(record if hook.wants_text else plain), None)
            except EdgewiseError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    async def note(self, record: AuditRecord) -> None:
        """As `audit`, of a request that has ended otherwise: nobody is left who could be refused, so faults are only logged."""
        try:
            await self.audit(record)
        except EdgewiseError as error:
            log.error("audit_lost", request_id=record.call.request_id, reason=error.message)

    async def _ask(self, hook: Hook, call: Call, texts: list[PromptText]) -> list[PromptText]:
        unchanged = [one.text for one in texts]
        answer = await self._guarded(hook.name, "before_prompt", hook.before_prompt(call, tuple(texts)), unchanged)
        if len(answer) != len(texts):
            self._failed(hook, "before_prompt", ValueError(f"{len(answer)} texts for {len(texts)}"))
            return texts
        return [PromptText(one.role, text) for one, text in zip(texts, answer, strict=True)]

    async def _guarded(self, name: str, method: str, work: Awaitable[Result], otherwise: Result) -> Result:
        """A hook's answer; its fault ends the request, or is passed over with `otherwise`."""
        try:
            return await within(work, self._timeout_s, lambda: TimeoutError(f"nothing within {self._timeout_s:g} s"))
        except ContentRefused:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's fault of any kind
            self._failed(name, method, error)
            return otherwise

    def _failed(self, hook: Hook | str, method: str, error: Exception) -> None:
        name = hook if isinstance(hook, str) else hook.name
        log.error("hook_failed", hook=name, method=method, fault=type(error).__name__, on_error=self._on_error)
        if self._on_error == "allow":
            return
        if isinstance(error, EdgewiseError):
            raise error
        raise HookFailed(
            f"The hook '{name}' failed ({type(error).__name__}), and without it no request is answered here: see the "
            "service's log, or hooks.on_error."
        ) from error


@dataclass(slots=True)
class _Written:
    """What of one answer has been shown."""

    gate: Gate
    sha: Any = field(default_factory=hashlib.sha256)
    text: list[str] = field(default_factory=list)
    finish: str | None = None


class Passage:
    """One admitted request: its answers go through `pass_on`, its end is told once."""

    def __init__(self, hooks: Hooks, call: Call, texts: Sequence[PromptText]) -> None:
        self._hooks = hooks
        self._call = call
        self._sha = _digest(texts)
        self._prompt = _joined(texts) if hooks.wants_text else None
        self._answers: list[_Written] = []
        self._prompt_tokens = 0
        self._tokens = 0
        self._ended = False

    async def begin(self, prompt_tokens: int, answers: int) -> None:
        """Before the engine gets the request. Raises `HookFailed` or what else a hook raised."""
        self._prompt_tokens = prompt_tokens
        self._answers = [_Written(Gate(self._held)) for _ in range(answers)]
        await self._hooks.audit(self._record("asked", None))

    async def pass_on(self, chunk: TextChunk) -> TextChunk | None:
        """What of a piece can be shown. The last piece of the last answer comes when its end has been told."""
        answer = self._answers[chunk.sequence]
        self._tokens += len(chunk.token_ids)
        shown = await answer.gate.feed(chunk)
        if shown is None:
            return None
        for part in shown.ordered:
            text = part if isinstance(part, str) else f"{part.name or ''}{part.arguments}"
            answer.sha.update(text.encode())
            if self._prompt is not None:
                answer.text.append(text)
        answer.finish = shown.finish
        await self._end_when_complete()
        return shown

    async def pass_picture(self, index: int, picture: bytes) -> None:
        """Picture `index` is finished; before the last one is shown, the end has been told."""
        await self.pass_bytes(index, picture, last=True)

    async def pass_bytes(self, index: int, piece: bytes, *, last: bool) -> None:
        """The next bytes of answer `index`; before the last ones of the last answer are shown, the end has been told."""
        answer = self._answers[index]
        answer.sha.update(piece)
        if last:
            answer.finish = "done"
            await self._end_when_complete()

    async def end(self, code: str) -> None:
        """The request ends without all of its answers."""
        if self._ended or not self._answers:
            return
        self._ended = True
        await self._hooks.note(self._record("answered", code))

    async def _end_when_complete(self) -> None:
        if all(one.finish is not None for one in self._answers):
            self._ended = True
            await self._hooks.audit(self._record("answered", "completed"))

    def _held(self) -> HeldText:
        return HeldText(self._hooks.filters(self._call), self._hooks.check)

    def _record(self, event: Literal["asked", "answered"], outcome: str | None) -> AuditRecord:
        ended = event == "answered"
        return AuditRecord(
            event=event,
            time=self._hooks.clock.time(),
            call=self._call,
            prompt_sha256=self._sha,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._tokens if ended else None,
            answers=tuple(self._answer(one) for one in self._answers) if ended else (),
            outcome=outcome,
            prompt_text=self._prompt,
        )

    def _answer(self, one: _Written) -> Answer:
        text = None if self._prompt is None else "".join(one.text)
        return Answer(finish=one.finish, sha256=one.sha.hexdigest(), text=text)


def _digest(texts: Sequence[PromptText]) -> str:
    canonical = json.dumps([[one.role, one.text] for one in texts], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _joined(texts: Sequence[PromptText]) -> str:
    return "\n".join(f"{one.role}: {one.text}" for one in texts)
