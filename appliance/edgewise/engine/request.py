"""What a caller asks of an engine and what comes back. Plain frozen data; crosses the process border unchanged.

A generation is a pure function of (model digest, numeric class, prompt, sampling parameters, seed, position), so a request
that carries the tokens already delivered (`output`) continues exactly where it was, in whichever process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from edgewise.core.errors import InvalidRequest
from edgewise.core.priority import Priority as Priority
from edgewise.engine.alignment import Alignment
from edgewise.engine.speech import Sound, Speech, SpeechStats
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.multimodal.media import Media

FinishReason = Literal["stop", "length", "cancelled", "error"]
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. `validate` is called by whoever accepts a request from outside.

    Attributes:
        max_tokens: Upper bound of generated tokens, the stop token included; >= 1.
        temperature: 0 means greedy (largest logit, lowest id on a tie); up to 2 by OpenAI's document, here up to 100.
        top_k: Keep the k most probable tokens; 0 keeps all.
        top_p: Keep the smallest set of most probable tokens whose mass reaches top_p; (0, 1].
        min_p: Drop tokens less probable than min_p x the most probable one; [0, 1).
        repetition_penalty: Divide positive / multiply negative logits of every token seen in prompt or output (CTRL,
            Keskar et al. 2019); [0.01, 100], 1 is off.
        presence_penalty, frequency_penalty: Subtracted from the logits of generated tokens once / per occurrence; [-2, 2].
        logit_bias: Added to the logits of these ids; values in [-100, 100].
        seed: Key of the counter-based generator; 0 <= seed < 2**64. The caller draws one when the user gave none.
        min_tokens: Stop tokens are not drawn before this many tokens.
        stop_token_ids: Ids that end the answer. The id itself is delivered as the last token.
        top_logprobs: None for no log probabilities, 0 for the drawn token's alone, up to 20 for that many alternatives.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None

    @property
    def plain_greedy(self) -> bool:
        """Whether the largest logit is drawn, whatever came before, and nothing is told of the others."""
        return (
            self.temperature == 0.0
            and self.repetition_penalty == 1.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and not self.logit_bias
            and (self.min_tokens == 0 or not self.stop_token_ids)
            and self.top_logprobs is None
        )

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidRequest` naming the field and its limits if any value is out of range."""
        checks: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", self.max_tokens >= 1, "must be at least 1"),
            ("temperature", 0.0 <= self.temperature <= 100.0, "must be between 0 and 100"),
            ("top_k", self.top_k >= 0, "must be 0 (off) or positive"),
            ("top_p", 0.0 < self.top_p <= 1.0, "must be above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p < 1.0, "must be at least 0 and below 1"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "must be between 0.01 and 100"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "must be between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "must be between -2 and 2"),
            ("seed", 0 <= self.seed < 2**64, "must be between 0 and 2**64 - 1"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "must be between 0 and max_tokens"),
            (
                "top_logprobs",
                self.top_logprobs is None or 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
                f"must be between 0 and {MAX_TOP_LOGPROBS}",
            ),
        )
        for name, ok, rule in checks:
            if not ok:
                raise InvalidRequest(f"'{name}' is {getattr(self, name)}: it {rule}.", param=name)
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"'logit_bias' names token id {token}: ids run from 0 to {vocab_size - 1}.", param="logit_bias"
                )
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest(
                    f"'logit_bias' of token {token} is {bias}: it must be between -100 and 100.", param="logit_bias"
                )
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"'stop_token_ids' names token id {token}: ids run from 0 to {vocab_size - 1}.",
                    param="stop_token_ids",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One sequence to generate.

    Attributes:
        id: Unique among the requests in flight.
        prompt: Token ids, at least one.
        sampling: How to draw.
        output: Tokens already delivered to the caller; the engine continues after them (resume).
        salt: Separates prefix-cache entries of tenants.
        apart: Keeps its pages apart from all others, those of its tenant too; set within the engine alone.
        key: Who asks; requests of one class share the engine fairly by key.
        lead_s: Seconds of the device that the key has had beyond the key of its class that has had least
            (`engine.pool.shares`).
        priority: Deadline class.
        deadline_s: Seconds from submission after which the request fails with `deadline_exceeded`; None for no limit.
        constraint: Grammar that the answer must follow, as llguidance's JSON text; None for free text.
        shared: Whether KV pages of its prompt may come from, and go to, appliances of the same site.
        media: What the prompt's placeholders stand for, in order, without overlap.
        adapter: Low-rank adapter of the model to answer with; None for the model as it is.
        speech: That the answer is spoken as well, by an engine that has voices. The answer ends when all has been said.
        whole: Nobody reads the answer before its end, so its tokens may be told late.
        alignment: That the places of the prompt's words in its recording are told with the last chunk; None where they are not.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    output: tuple[int, ...] = ()
    salt: str = ""
    apart: str = ""
    key: str = ""
    lead_s: float = 0.0
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    constraint: str | None = None
    shared: bool = False
    media: tuple[Media, ...] = ()
    speech: Speech | None = None
    adapter: AdapterFiles | None = None
    whole: bool = False
    alignment: Alignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log probabilities at one position, of the model's distribution before temperature and filters.

    Attributes:
        token: The drawn id.
        logprob: Its natural-log probability.
        top: Most probable (id, logprob) pairs, best first; length `top_logprobs`.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of an answer that one engine made: from generated token `offset` on, up to the next segment's.

    Attributes:
        where: "local", "cloud" or "peer".
        numeric_class: Of the engine that made it; None where it is unknown. Where it differs from the segment before, the
            continuation is a valid one, but not the bytes that the first engine would have made.
        why: One sentence: what made the answer go on here.
    """

    where: str
    offset: int
    numeric_class: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What a request cost beyond this device, over all attempts: bytes of messages up and down, and the money that the other
    side charges. With `hedged`, both sides worked on it."""

    up_bytes: int = 0
    down_bytes: int = 0
    price: float = 0.0
    hedged: bool = False


@runtime_checkable
class Linked(Protocol):
    """A stream from beyond this device: it tells at any time, also after it broke or was closed, what it has cost so far."""

    @property
    def link(self) -> LinkUse | None: ...


def link_of(stream: object) -> LinkUse | None:
    """What a stream has cost beyond this device; None for one of the device's own."""
    return stream.link if isinstance(stream, Linked) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderUse:
    """What an encoder computed for a request.

    Attributes:
        unit: Kind of its media: "image", "video" or "audio".
        rung: Which form of the encoder ran last, as the ladder names it (docs/encoders.md).
        seconds: Of the device.
        media: How many it encoded; those whose rows were kept from an earlier request are not among them.
    """

    unit: str
    rung: str
    seconds: float = 0.0
    media: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Facts about a finished request, for usage and receipt. Times in seconds on the engine's monotonic clock.

    `restored_tokens` are those of `cached_tokens` that came back from a lower cache tier (host memory, disk), or
    from another appliance: `handed_tokens`, whose pages were `handed_bytes` on their way. `handed_form` is "int4" where the
    answer was computed over pages that had been rounded for it, also by an earlier request. `accepted_tokens` are those of
    `proposed_tokens`, guessed and checked (`engine.speculation`), that were right. `segments` are set where more than
    one engine made the answer, or one elsewhere; `link` where something was sent there. `warnings` are sentences for the receipt
    about what the engine could not do as asked. `speech` is set where the answer was spoken. `device_s` is the time of the device
    that it had: of each step the share of its tokens, and all of what encoders took for it, which `encoders` has by kind.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_s: float
    prefill_s: float
    decode_s: float
    preemptions: int = 0
    restarts: int = 0
    restored_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    handed_tokens: int = 0
    handed_bytes: int = 0
    handed_form: str = ""
    segments: tuple[Segment, ...] = ()
    link: LinkUse | None = None
    warnings: tuple[str, ...] = ()
    speech: SpeechStats | None = None
    device_s: float = 0.0
    encoders: tuple[EncoderUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens of one request in order. `offset` counts generated tokens before this chunk.

    `sound` is what a spoken answer has next; such a chunk may have no tokens. The last chunk, and only it, has `finish` set;
    when that is "error", `error_code` and `error_message` say why. A stop token is delivered as the last token with finish
    "stop", except of spoken answers, whose last chunk comes when all has been said. `stats` come with the last chunk and with
    the first tokens of each life of the engine, so that a caller who ends the stream early (stop string) knows what the answer
    cost so far. Tokens of several steps may come together; `gaps` are the seconds between each of them and the one before it, as
    the engine made them: in order, none for a token that has none before it in this life, or where nobody measured. `frames` come
    with the last chunk where the request has an `alignment`: for each of its tokens the frame in which it begins.
    """

    request_id: str
    offset: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish: FinishReason | None = None
    stats: RequestStats | None = None
    error_code: str | None = None
    error_message: str | None = None
    sound: Sound | None = None
    gaps: tuple[float, ...] = ()
    frames: tuple[int, ...] = ()
