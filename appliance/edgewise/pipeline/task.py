"""What a caller wants, free of HTTP: the API makes a `Task`, the pipeline carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgewise.core.privacy import Privacy
from edgewise.engine.request import Priority, SamplingParams
from edgewise.models.multimodal.layout import Fitted
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.plan import Place, PolicyName
from edgewise.pipeline.receipts import LookReceipt, MediumReceipt

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""OpenAI's, for models that recommend nothing else; 0 and 1 switch our extensions off."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation, ready for the chat template.

    Attributes:
        messages: Each has `role` and `content`; an assistant's may have `tool_calls`, a tool's has `tool_call_id`, both in
            OpenAI's chat form (arguments as a JSON text). The content is text, or a list of parts where media are among them:
            {"type": "text", "text": ...}, {"type": "image"}.
        tools: Functions the model may call, in OpenAI's chat form: {"type": "function", "function": {...}}.
        attachments: One for each part that is no text, in their order, until `pipeline.media` has fetched them.
        media: The same when they have been fetched and fitted for the model; of a model without eyes the parts are texts then.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    attachments: tuple[Attachment, ...] = ()
    media: tuple[Fitted, ...] = ()


@dataclass(frozen=True, slots=True)
class TextInput:
    """Prompts to continue, each as text or as token ids."""

    prompts: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether tools are called.

    Attributes:
        mode: "auto" lets the model decide, "required" makes it call at least one, "none" forbids it.
        name: The one function that must be called; only with "required".
        parallel: Several calls in one answer are allowed.
    """

    mode: Literal["auto", "required", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """What the answer's text must be.

    Attributes:
        kind: "json_object" (any JSON object), "json_schema", "regex", "choice" (one of several texts) or "grammar" (Lark).
        value: The schema, the expression, the texts or the grammar; None with "json_object".
        param: Field of the request that asked for it, for messages.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    value: Any = None
    param: str = "response_format"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw, as far as the caller said. Meanings as in `engine.request.SamplingParams`.

    A None of temperature, top_k, top_p, min_p and repetition_penalty takes what the model recommends, else OpenAI's default.

    Attributes:
        max_tokens: None for all that is left of the context.
        fit_context: A `max_tokens` beyond the context means all that is left of it, instead of being refused.
        seed: None lets the pipeline draw one; the receipt names it.
        ignore_eos: Do not end at the model's own end tokens.
    """

    max_tokens: int | None = None
    fit_context: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None

    def effective(self, model: ServedModel) -> dict[str, float]:
        """The values in force for the fields that a model may recommend."""
        asked = {name: getattr(self, name) for name in DEFAULTS}
        given = {name: value for name, value in asked.items() if value is not None}
        return {**DEFAULTS, **model.sampling, **given}

    def resolve(self, model: ServedModel, *, max_tokens: int, seed: int) -> SamplingParams:
        """Parameters for the engine, validated; raises `InvalidRequest` naming the field."""
        drawn = self.effective(model)
        eos = () if self.ignore_eos else tuple(sorted(model.tokenizer.eos_ids))
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=drawn["temperature"],
            top_k=min(int(drawn["top_k"]), model.tokenizer.vocab_size),
            top_p=drawn["top_p"],
            min_p=drawn["min_p"],
            repetition_penalty=drawn["repetition_penalty"],
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=seed,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(dict.fromkeys((*self.stop_token_ids, *eos))),
            top_logprobs=self.top_logprobs,
        )
        params.validate(model.tokenizer.vocab_size)
        return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request.

    Attributes:
        id: Unique; names the request in logs, receipt and answer.
        stop: Strings that end the answer; the answer holds the text before the earliest one.
        n: Answers per prompt.
        salt: Separates prefix-cache entries of tenants.
        key: Who asks, for fairness among callers.
        priority: Deadline class.
        deadline_s: Seconds after which the request fails; None for no limit.
        privacy: How far its text may travel; who makes a task and says nothing keeps it here.
        policy: How places are chosen for it; None takes what is configured.
        allowed: Places that may be chosen; empty for all.
        tool_choice: Only with tools in the input.
        answer_format: None for free text.
        ignored: Fields of the request that have no effect here.
        warnings: Sentences for the receipt.
        max_image_pixels: The caller's bound of what a model sees of a picture, width * height.
        pan_and_scan: Whether pictures are shown in parts as well, of models that leave that open; None takes what is configured.
        voice: In which the answer is spoken as well; None for text alone.
        whole: Nobody reads the answer before its end.
        looks, media: For the receipt: which models looked at media before this one was asked, and what is seen of them.
    """

    id: str
    model: ServedModel
    input: ChatInput | TextInput
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    n: int = 1
    salt: str = ""
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    privacy: Privacy = Privacy.PRIVATE
    policy: PolicyName | None = None
    allowed: tuple[Place, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    answer_format: AnswerFormat | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    max_image_pixels: int | None = None
    pan_and_scan: bool | None = None
    voice: str | None = None
    whole: bool = False
    looks: tuple[LookReceipt, ...] = ()
    media: tuple[MediumReceipt, ...] = ()
