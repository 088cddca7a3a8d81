"""What a server with OpenAI's completions API is asked, and what its answers mean: from a job's work to a request and back. Pure.

Servers differ in what they take beside OpenAI's own fields. What one cannot honour is left out and named, never sent in the hope
that it is understood: many servers ignore unknown fields without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.cloud.executors.protocol import Produced
from edgewise.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgewiseError,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    UnsupportedField,
    error_class,
)
from edgewise.wire.messages import Finish, GenerateWork

_VLLM: Final = {
    name: name for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")
}
_EXTENSIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "edgewise": _VLLM,
    "vllm": _VLLM | {"add_special_tokens": "add_special_tokens"},
    "sglang": _VLLM,
    "llamacpp": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "ignore_eos": "ignore_eos",
    },
}
"""By the `owned_by` of a server's models: what it takes beside OpenAI's fields, and under which name."""

_NEUTRAL: Final[Mapping[str, Any]] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
_LONGEST_TEMPERATURE: Final = 2.0
_MOST_LOGPROBS: Final = 5
_BROKEN: Final = ("abort", "error")
_FINISHES: Final[Mapping[str, Finish]] = {"stop": "stop", "eos": "stop", "eos_token": "stop", "length": "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamModel:
    """A model as the server lists it; `digest` only where it tells one (another appliance does)."""

    id: str
    owned_by: str = ""
    digest: str | None = None
    context: int | None = None

    @classmethod
    def read(cls, listed: Any) -> UpstreamModel | None:
        """From an entry of `/v1/models`; None if it has no id."""
        if not isinstance(listed, dict) or not isinstance(listed.get("id"), str):
            return None
        ours = listed["edgewise"] if isinstance(listed.get("edgewise"), dict) else {}
        meta = listed["meta"] if isinstance(listed.get("meta"), dict) else {}
        contexts = (ours.get("context"), listed.get("max_model_len"), meta.get("n_ctx"), meta.get("n_ctx_train"))
        digest = ours.get("digest")
        return cls(
            id=listed["id"],
            owned_by=str(listed.get("owned_by") or ""),
            digest=digest if isinstance(digest, str) else None,
            context=next((one for one in contexts if isinstance(one, int) and one > 0), None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request's body without its prompt and stream, and what it leaves out: field -> why."""

    fields: Mapping[str, Any]
    left_out: Mapping[str, str] = field(default_factory=dict)


def asking(work: GenerateWork, model: UpstreamModel, *, spent: int | None) -> Asking:
    """What the server is asked for.

    Args:
        work: Its sampling holds the fields of `SamplingParams`.
        model: The server's.
        spent: Tokens of the answer that are in the log already; None if that is unknown, 0 at the beginning.

    Raises:
        UnsupportedField: The work cannot be done by such a server at all.
    """
    if work.constraint is not None:
        raise UnsupportedField(
            "This cloud passes work on to a server that cannot hold an answer to a grammar: run it elsewhere.",
            param="constraint",
        )
    return _Asking(work, model, spent).result()


class _Asking:
    def __init__(self, work: GenerateWork, model: UpstreamModel, spent: int | None) -> None:
        self._sampling = work.sampling
        self._same = work.digest is not None and work.digest == model.digest
        self._names = _EXTENSIONS.get(model.owned_by, {})
        self._server = model.owned_by or "an unnamed server"
        self._spent = spent
        self._fields: dict[str, Any] = {"model": model.id}
        self._left_out: dict[str, str] = {}

    def result(self) -> Asking:
        self._lengths()
        self._openai()
        self._extensions()
        self._ids()
        return Asking(fields=self._fields, left_out=self._left_out)

    def _lengths(self) -> None:
        spent = self._spent or 0
        if self._spent is None:
            self._leave_out("max_tokens", "the server counts no tokens, so those before the interruption do not count")
        if (longest := self._sampling.get("max_tokens")) is not None:
            self._fields["max_tokens"] = max(1, longest - spent)
        if shortest := max(0, self._sampling.get("min_tokens", 0) - spent):
            self._extension("min_tokens", shortest)

    def _openai(self) -> None:
        sampling, fields = self._sampling, self._fields
        temperature = sampling.get("temperature", 1.0)
        fields["temperature"] = min(temperature, _LONGEST_TEMPERATURE)
        if temperature > _LONGEST_TEMPERATURE:
            self._leave_out("temperature", f"servers take at most {_LONGEST_TEMPERATURE:g}")
        fields["top_p"] = sampling.get("top_p", 1.0)
        seed = sampling.get("seed", 0)
        fields["seed"] = seed - 2**64 if seed >= 2**63 else seed  # the same 64 bits, as servers take them
        for name in ("presence_penalty", "frequency_penalty"):
            if (value := sampling.get(name, 0.0)) != 0.0:
                fields[name] = value
                if self._spent != 0:
                    self._leave_out(name, "text before the interruption does not count")
        if (count := sampling.get("top_logprobs")) is not None:
            fields["logprobs"] = min(count, _MOST_LOGPROBS)
            if count > _MOST_LOGPROBS:
                self._leave_out("top_logprobs", f"servers give at most {_MOST_LOGPROBS}")

    def _extensions(self) -> None:
        for name in ("top_k", "min_p", "repetition_penalty"):
            if (value := self._sampling.get(name, _NEUTRAL[name])) != _NEUTRAL[name]:
                self._extension(name, value)
        if "add_special_tokens" in self._names:  # the chat template has written them
            self._fields["add_special_tokens"] = False

    def _ids(self) -> None:
        """Fields that name tokens mean something only to a server with the same tokenizer."""
        stops = list(self._sampling.get("stop_token_ids", ()))
        if not stops:
            self._extension("ignore_eos", True)
        elif self._same:
            self._extension("stop_token_ids", stops)
        else:
            self._leave_out(
                "stop_token_ids", "the server's model is not known to be the same: it ends as that one does"
            )
        if bias := self._sampling.get("logit_bias"):
            if self._same:
                self._fields["logit_bias"] = {str(token): value for token, value in dict(bias).items()}
            else:
                self._leave_out("logit_bias", "the server's model is not known to be the same")

    def _leave_out(self, name: str, why: str) -> None:
        self._left_out[name] = why

    def _extension(self, name: str, value: Any) -> None:
        if (theirs := self._names.get(name)) is None:
            self._leave_out(name, f"{self._server} is not known to take it")
        else:
            self._fields[theirs] = value


# --- what comes back ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Usage:
    """Tokens as the server counts them; None where it does not."""

    prompt: int | None = None
    completion: int | None = None
    cached: int = 0

    def note(self, told: Any) -> None:
        """From the `usage` of an answer or event, if it has one."""
        if not isinstance(told, dict):
            return
        self.prompt = _count(told.get("prompt_tokens"), self.prompt)
        self.completion = _count(told.get("completion_tokens"), self.completion)
        details = told.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached = _count(details.get("cached_tokens"), self.cached) or 0


def _count(value: Any, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and value >= 0 else otherwise


@dataclass(slots=True)
class Reading:
    """A stream of completion events so far.

    Attributes:
        finish: Once the server has said why the answer ended, as ours; `said` is its own word.
        usage: As it counts.
        model: As it names it, which may differ from what was asked.
    """

    finish: Finish | None = None
    said: str | None = None
    usage: Usage = field(default_factory=Usage)
    model: str | None = None

    def take(self, event: Any) -> Produced | None:
        """One event; the text that it brings, None if it brings none.

        Raises:
            EngineUnavailable: It is no event of a completion.
            EdgewiseError: It says that the answer has failed.
        """
        if not isinstance(event, dict):
            raise EngineUnavailable("The upstream server sent an event that is no JSON object.")
        if event.get("error"):
            raise told_error(event, 500, None)
        self.usage.note(event.get("usage"))
        if isinstance(event.get("model"), str):
            self.model = event["model"]
        choices = event.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise EngineUnavailable("The upstream server sent an event whose choices are no list of objects.")
        for choice in choices[:1]:
            return self._choice(choice)
        return None

    def _choice(self, choice: Mapping[str, Any]) -> Produced | None:
        text = choice.get("text") or ""
        if not isinstance(text, str):
            raise EngineUnavailable("The upstream server sent a choice whose text is none.")
        if isinstance(said := choice.get("finish_reason"), str):
            if said in _BROKEN:
                raise EngineUnavailable(f"The upstream server ended the answer with '{said}'.")
            self.said, self.finish = said, _FINISHES.get(said, "stop")
        if not text:
            return None
        text = whole_characters(text)
        return Produced(count=len(text), text=text, logprobs=_logprobs(choice.get("logprobs")))


def whole_characters(text: str) -> str:
    """Text that has an encoding: JSON may hold halves of characters, of which pairs are joined and single ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _logprobs(told: Any) -> tuple[Any, ...] | None:
    """One entry a token: [log probability, [[text, log probability], ...]], the drawn token first in the list."""
    if not isinstance(told, dict):
        return None
    names, values, tops = told.get("tokens") or [], told.get("token_logprobs") or [], told.get("top_logprobs") or []
    entries = []
    for index, (name, value) in enumerate(zip(names, values, strict=False)):
        top = tops[index] if index < len(tops) and isinstance(tops[index], dict) else {}
        others = sorted(((one, p) for one, p in top.items() if one != name), key=lambda pair: -pair[1])
        entries.append([value, [[name, value], *([one, p] for one, p in others)]])
    return tuple(entries)


_BY_STATUS: Final[Mapping[int, type[EdgewiseError]]] = {
    404: ModelNotFound,
    408: EngineUnavailable,
    413: PayloadTooLarge,
    429: QueueFull,
    502: EngineUnavailable,
    503: EngineUnavailable,
    504: EngineUnavailable,
}
_TELLING: Final = (
    ContextLengthExceeded,
    ModelNotFound,
    PayloadTooLarge,
    QueueFull,
    EngineUnavailable,
    DeadlineExceeded,
)
"""What another appliance, or a server with OpenAI's codes, may say of a request, whatever the status."""


def told_error(body: Any, status: int, retry_after_s: float | None) -> EdgewiseError:
    """The error that an answer of the server means for the job.

    That the server refuses our key is a mistake of this cloud's configuration and no fault of the device's key.
    """
    told = body.get("error") if isinstance(body, dict) else None
    told = told if isinstance(told, dict) else {"message": told}
    code, message = told.get("code"), told.get("message")
    said = message[:500] if isinstance(message, str) else "no reason given"
    text = f"The upstream server answers {status}: {said}"
    if status in (401, 403):
        return ConfigError(f"{text}. Check intake.upstream_key_file.")
    named = error_class(code) if isinstance(code, str) else None
    if named is not None and issubclass(named, _TELLING):
        return named(text, retry_after_s=retry_after_s)
    if status == 400 and "context length" in said:  # vLLM's and others' words for it, under codes of their own
        return ContextLengthExceeded(text)
    kind = _BY_STATUS.get(status) or (EngineUnavailable if status >= 500 else InvalidRequest)
    return kind(text, retry_after_s=retry_after_s)
