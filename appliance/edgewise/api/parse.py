"""A validated body to a `Task`, and what the answer must look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.api.answer_format import answer_format_of
from edgewise.api.deps import KeyRecord
from edgewise.api.fields import (
    CHAT_IGNORED,
    CHAT_REFUSED,
    COMPLETION_IGNORED,
    COMPLETION_REFUSED,
    STREAM_OPTIONS_IGNORED,
    Refusal,
)
from edgewise.api.messages import chat_input
from edgewise.api.priority import priority_in_force
from edgewise.api.privacy import privacy_in_force
from edgewise.api.schemas import ChatBody, CompletionBody, Generation
from edgewise.api.tools import tool_choice_of, tools_of
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.core.modality import Modality, modality_of_role
from edgewise.core.priority import Priority
from edgewise.core.privacy import Labels, Privacy
from edgewise.pipeline.model import Served, ServedModel, role_of
from edgewise.pipeline.plan import PolicyName
from edgewise.pipeline.pressure import Pressure
from edgewise.pipeline.task import Sampling, Task, TextInput

ANONYMOUS = "anonymous"
"""Stands for all callers without a key."""
SMALLEST_TOP_P = 1e-9
"""OpenAI allows top_p 0; it keeps the most probable token alone, as every value that small does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """Attributes:
    stream: Server-sent events instead of one body.
    include_usage: A usage event at the end of the stream.
    return_token_ids: Extension: token ids beside the text.
    logprobs: Log probabilities beside the text.
    echo: Completions: the prompt's text before the answer.
    """

    stream: bool
    include_usage: bool
    return_token_ids: bool
    logprobs: bool
    echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What of the request's circumstances goes into a task, and how many answers it may ask for at once.

    Attributes:
        key: None for a caller without one.
        asked_priority: Deadline class that the request itself names; None if it does not.
        model_priority: Classes set for models, by name.
        label: Privacy label of the key, or of the batch; None where it has none.
        asked_privacy, policy: Label and placement policy that the request itself names; None if it does not.
        labels: Those of models, and the default.
        pressure: What else the class depends on, where the request itself names none.
    """

    request_id: str
    salt: str
    timeout_s: float | None
    max_sequences: int
    key: KeyRecord | None = None
    asked_priority: Priority | None = None
    model_priority: Mapping[str, Priority] = field(default_factory=dict)
    label: Privacy | None = None
    asked_privacy: Privacy | None = None
    labels: Labels = field(default_factory=Labels)
    policy: PolicyName | None = None
    pressure: Pressure = field(default_factory=Pressure)

    @property
    def key_id(self) -> str:
        """Whom fairness among callers knows."""
        return ANONYMOUS if self.key is None else self.key.id

    def deadline_s(self, timeout_s: float | None) -> float | None:
        """The shorter of the service's limit and what the request's body asks for."""
        return min((limit for limit in (timeout_s, self.timeout_s) if limit is not None), default=None)

    def priority(self, model: Served) -> Priority:
        """Of a request to a model. What a caller named stays; else voice is realtime, and pictures and film wait while the device
        is pressed."""
        modality = modality_of_role(role_of(model))
        usual = Priority.REALTIME if modality is Modality.VOICE else Priority.INTERACTIVE
        priority = priority_in_force(self.asked_priority, self.key, self.model_priority.get(model.name), usual)
        return priority if self.asked_priority is not None else self.pressure.priority(modality, priority)

    def privacy(self, model: Served, inherited: Privacy | None = None) -> Privacy:
        """The label of a request to a model; `inherited` is that of the answer it continues. Raises as `privacy_in_force`."""
        floor = self.labels.strictest(self.label, self.labels.model(model.names), inherited)
        return privacy_in_force(self.asked_privacy, floor)

    def early_label(self, name: str) -> Privacy:
        """The label of a request to a model of this name; see `core.privacy.early_label`."""
        floor = self.labels.strictest(self.label, self.labels.model((name,)))
        return floor if self.asked_privacy is None else min(floor, self.asked_privacy)


def chat_task(body: ChatBody, model: ServedModel, caller: Caller) -> tuple[Task, AnswerForm]:
    """Raises `InvalidRequest` or a subclass, naming the field."""
    _refuse(body, CHAT_REFUSED)
    _check_stream_options(body)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' are the same: send one.", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    conversation, message_ignored = chat_input(body.messages)
    tools = tools_of(body.tools)
    if body.parallel_tool_calls is not None and not tools:
        message_ignored.append("parallel_tool_calls")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = _sampling(body, max_tokens, (body.top_logprobs or 0) if body.logprobs else None)
    task = Task(
        id=caller.request_id,
        model=model,
        input=replace(conversation, tools=tools),
        tool_choice=tool_choice_of(body.tool_choice, body.parallel_tool_calls, tools),
        answer_format=answer_format_of(body, body.response_format),
        sampling=sampling,
        stop=body.stop,
        n=_answers(body, 1, caller.max_sequences),
        salt=caller.salt,
        key=caller.key_id,
        priority=caller.priority(model),
        privacy=caller.privacy(model),
        policy=caller.policy,
        deadline_s=caller.deadline_s(body.timeout),
        max_image_pixels=body.max_image_pixels,
        pan_and_scan=body.pan_and_scan,
        ignored=(*_ignored(body, CHAT_IGNORED), *message_ignored),
    )
    return task, _form(body, logprobs=bool(body.logprobs))


def completion_task(body: CompletionBody, model: ServedModel, caller: Caller) -> tuple[Task, AnswerForm]:
    """Raises `InvalidRequest` or a subclass, naming the field."""
    _refuse(body, COMPLETION_REFUSED, allowed={"best_of": body.n})
    _check_stream_options(body)
    n = _answers(body, len(body.prompt), caller.max_sequences)
    if body.echo and body.logprobs is not None:
        raise UnsupportedField(
            "'echo' together with 'logprobs' is not supported here: a prompt has no log probabilities.", param="echo"
        )
    task = Task(
        id=caller.request_id,
        model=model,
        input=TextInput(body.prompt),
        answer_format=answer_format_of(body),
        sampling=_sampling(body, body.max_tokens, body.logprobs),
        stop=body.stop,
        n=n,
        salt=caller.salt,
        key=caller.key_id,
        priority=caller.priority(model),
        privacy=caller.privacy(model),
        policy=caller.policy,
        deadline_s=caller.deadline_s(body.timeout),
        ignored=_ignored(body, COMPLETION_IGNORED),
    )
    return task, _form(body, logprobs=body.logprobs is not None, echo=bool(body.echo))


def _answers(body: Generation, prompts: int, limit: int) -> int:
    """Answers to each prompt; more than the service could ever hold are refused, since trying again would not help."""
    n = body.n or 1
    if prompts * n <= limit:
        return n
    if prompts == 1:
        raise InvalidRequest(f"'n' is {n}: this service makes at most {limit} answers in one request.", param="n")
    raise InvalidRequest(
        f"{prompts} prompts with n = {n} are {prompts * n} answers: at most {limit} in one request.", param="prompt"
    )


def _refuse(body: Generation, table: Mapping[str, Refusal], allowed: Mapping[str, Any] | None = None) -> None:
    for name, refusal in table.items():
        value = getattr(body, name)
        if value is None or refusal.harmless(value) or (allowed and name in allowed and allowed[name] == value):
            continue
        raise UnsupportedField(f"'{name}' is not supported here: {refusal.why}.", param=name)


def _check_stream_options(body: Generation) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed with 'stream': true.", param="stream_options")


def _ignored(body: Generation, names: Iterable[str]) -> tuple[str, ...]:
    found = [name for name in sorted(names) if getattr(body, name) is not None]
    if body.stream_options is not None:
        found += [
            f"stream_options.{name}"
            for name in sorted(STREAM_OPTIONS_IGNORED)
            if getattr(body.stream_options, name) is not None
        ]
    return tuple(found)


def _sampling(body: Generation, max_tokens: int | None, top_logprobs: int | None) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=None if body.top_p is None else max(body.top_p, SMALLEST_TOP_P),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=body.logit_bias,
        seed=body.seed,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        top_logprobs=top_logprobs,
    )


def _form(body: Generation, *, logprobs: bool, echo: bool = False) -> AnswerForm:
    return AnswerForm(
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        return_token_ids=bool(body.return_token_ids),
        logprobs=logprobs,
        echo=echo,
    )
