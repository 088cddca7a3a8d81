"""A model on trial: it reads what the model in use wrote to recent inputs, and is timed beside it. Only scores come out.

Agreement is teacher-forced: for each position of the text that the model in use made greedily, would the candidate have put the
same token next? So one early difference does not make all that follows differ. Where the two models have other tokens the text is
read in the candidate's own. Speeds are those of one stream each, measured one after the other on the same machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from edgewise.core.errors import EdgewiseError, EngineFault, InvalidRequest, error_class
from edgewise.core.priority import Priority
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.pipeline.model import Models, ServedModel
from edgewise.pipeline.prompt import encode_input
from edgewise.pipeline.recent import TRIAL_KEY, RecentInputs
from edgewise.pipeline.task import ChatInput, Task, TextInput
from edgewise.wire.fleet import TrialArgs, TrialResult

_TOGETHER = 8  # positions that are looked at at once
BUILT_IN = (
    "Write one sentence about the sea.",
    "What is the capital of France?",
    "List three colours.",
    "The quick brown fox",
    "Explain in one sentence why the sky is blue.",
    "Name a fruit that is yellow.",
    "Once upon a time there was a",
    "How many days has a week?",
)
"""What is run where nothing was asked lately."""

Meter = Callable[[], float | None]
"""Joules that the machine has taken so far, None where that is not measured."""
Progress = Callable[[str, float], Awaitable[None]]
"""Told the step and the percentage done."""


@dataclass(slots=True)
class _Answer:
    """What a model wrote. `seconds` and `joules` (None where unknown) are from its first token to the last: neither reading the
    prompt nor loading the model is among them."""

    written: list[int]
    seconds: float
    joules: float | None


@dataclass(slots=True)
class _Pace:
    """Sums over answers; `measured` counts the tokens whose energy is known."""

    tokens: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    measured: int = 0

    def add(self, answer: _Answer) -> None:
        after_first = len(answer.written) - 1
        if after_first < 1:
            return
        self.tokens += after_first
        self.seconds += answer.seconds
        if answer.joules is not None:
            self.joules += answer.joules
            self.measured += after_first

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def joules_per_token(self) -> float | None:
        return self.joules / self.measured if self.measured else None


async def run_trial(
    models: Models,
    args: TrialArgs,
    recent: RecentInputs,
    *,
    meter: Meter = lambda: None,
    progress: Progress | None = None,
) -> TrialResult:
    """Try a model that is installed beside the one in use.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel, OutOfMemory, EngineUnavailable: Of either model.
        InvalidRequest: None of the inputs can be read by both models.
    """
    own = recent.newest(args.prompts)
    inputs = own or [TextInput((text,)) for text in BUILT_IN[: args.prompts]]
    baseline_name = args.baseline or next((model.name for model in models.pinned()), None)
    texts: list[tuple[ChatInput | TextInput, list[int] | None]] = []
    old = _Pace()
    baseline: ServedModel | None = None
    if baseline_name is None or baseline_name == args.candidate:
        texts = [(given, None) for given in inputs]
    else:
        baseline = await models.open(baseline_name)
        for index, given in enumerate(inputs):
            await _tell(progress, "reading what the model in use writes", 50 * index / len(inputs))
            written = await _write(baseline, given, args.tokens, old, meter)
            if written is not None:
                texts.append((given, written))
    candidate = await models.open(args.candidate)
    new, same, positions, ran = _Pace(), 0, 0, 0
    for index, (given, theirs) in enumerate(texts):
        await _tell(progress, "trying the candidate", 50 + 50 * index / len(texts))
        if await _write(candidate, given, args.tokens, new, meter) is None:
            continue
        ran += 1
        if theirs is not None and baseline is not None:
            agreed = await _agreement(candidate, given, _in_tokens_of(candidate, baseline, theirs), args.tokens)
            same, positions = same + sum(agreed), positions + len(agreed)
    if not ran:
        raise InvalidRequest("No input could be read by both models: they have no room for it, or no chat template.")
    compared = positions > 0
    return TrialResult(
        prompts=ran,
        own=bool(own),
        agreement=same / positions if compared else None,
        tokens_per_s=new.tokens_per_s,
        baseline_tokens_per_s=old.tokens_per_s if compared else None,
        joules_per_token=new.joules_per_token,
        baseline_joules_per_token=old.joules_per_token if compared else None,
    )


async def _tell(progress: Progress | None, step: str, percent: float) -> None:
    if progress is not None:
        await progress(step, percent)


async def _prompt(model: ServedModel, given: ChatInput | TextInput, room: int) -> tuple[int, ...] | None:
    """Token ids of an input, None if this model cannot take it."""
    task = Task(id=f"trial-{uuid4().hex}", model=model, input=given, key=TRIAL_KEY)
    try:
        prompt = (await encode_input(task)).prompts[0]
    except InvalidRequest:
        return None  # no template, or one that refuses these messages
    return prompt if len(prompt) + room <= model.context else None


async def _write(
    model: ServedModel, given: ChatInput | TextInput, tokens: int, pace: _Pace, meter: Meter
) -> list[int] | None:
    """The greedy continuation, its time added to `pace`; None if the model cannot take the input."""
    prompt = await _prompt(model, given, tokens)
    if prompt is None:
        return None
    answer = await _generate(model, prompt, tokens, meter)
    pace.add(answer)
    return [token for token in answer.written if token not in model.tokenizer.eos_ids]


def _in_tokens_of(model: ServedModel, writer: ServedModel, written: Sequence[int]) -> list[int]:
    """What `writer` wrote, as it is where this model has the same tokens: a text can be cut into tokens in several ways, and a
    model does not always choose that of the tokenizer."""
    reads, wrote = model.tokenizer, writer.tokenizer
    if all(id < reads.vocab_size and reads.token_bytes(id) == wrote.token_bytes(id) for id in written):
        return list(written)
    return reads.encode(wrote.decode(written), parse_special=False)


async def _agreement(model: ServedModel, given: ChatInput | TextInput, text: Sequence[int], tokens: int) -> list[bool]:
    """For each token of `text`: whether it would have come next."""
    prompt = await _prompt(model, given, 2 * tokens)
    if prompt is None:
        return []
    wanted = text[:tokens]
    agreed: list[bool] = []
    for begin in range(0, len(wanted), _TOGETHER):
        places = range(begin, min(begin + _TOGETHER, len(wanted)))
        nexts = await asyncio.gather(*(_generate(model, (*prompt, *wanted[:place]), 1) for place in places))
        agreed += [answer.written == [wanted[place]] for place, answer in zip(places, nexts, strict=True)]
    return agreed


async def _generate(model: ServedModel, prompt: Sequence[int], tokens: int, meter: Meter = lambda: None) -> _Answer:
    """Greedy tokens."""
    request = GenerateRequest(
        id=f"trial-{uuid4().hex}",
        prompt=tuple(prompt),
        sampling=SamplingParams(
            max_tokens=tokens, temperature=0.0, stop_token_ids=tuple(sorted(model.tokenizer.eos_ids))
        ),
        salt=TRIAL_KEY,
        key=TRIAL_KEY,
        priority=Priority.BACKGROUND,
    )
    stream = await model.engine.submit(request)
    written: list[int] = []
    first = last = time.monotonic()
    before: float | None = None
    try:
        async for chunk in stream:
            last = time.monotonic()
            if not written and chunk.tokens:
                first, before = last, meter()
            written += chunk.tokens
            if chunk.finish in ("error", "cancelled"):
                raise _error(chunk.error_code, chunk.error_message)
    finally:
        await stream.aclose()
    after = meter()
    joules = None if before is None or after is None else after - before
    return _Answer(written, last - first if written else 0.0, joules)


def _error(code: str | None, message: str | None) -> EdgewiseError:
    return (error_class(code or "") or EngineFault)(message or "The engine ended the answer.")
