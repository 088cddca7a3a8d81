"""A deterministic engine core for tests of the process around it: no model, no torch.

A token is a pure function of (prompt, seed, position), so any core continues any stream. Each request carries its own little
programme in `salt`, a JSON object (see `Programme`); `ModelFiles.paths["fake.json"]` may name a file with settings of the core.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgewise.core import errors
from edgewise.core.errors import EdgewiseError
from edgewise.engine.api import CacheTier, EngineInfo, EngineStats, MemoryReport
from edgewise.engine.config import EngineConfig
from edgewise.engine.request import (
    FinishReason,
    GenerateRequest,
    RequestStats,
    SamplingParams,
    TokenChunk,
    TokenLogprobs,
)
from edgewise.models.files import ModelFiles

VOCAB = 50_000
PAGE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """What a request makes the core do.

    Attributes:
        crash_at: Kill the process when this many tokens have been generated.
        raise_at: Raise in `step` when this many tokens have been generated.
        hang_at: Sleep for ever in `step` when this many tokens have been generated.
        once: Path of a marker file: do the above only if it does not exist, and create it.
        refuse: Code of the error that `add` raises.
        skip_at: Leave out this token (a gap).
        prefill_steps: Steps without a token before the first.
        burst: Tokens per step.
    """

    crash_at: int | None = None
    raise_at: int | None = None
    hang_at: int | None = None
    once: str | None = None
    refuse: str | None = None
    skip_at: int | None = None
    prefill_steps: int = 0
    burst: int = 1

    @classmethod
    def of(cls, salt: str) -> Programme:
        return cls(**json.loads(salt)) if salt else cls()

    def salt(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    def due(self) -> bool:
        """True if the mishap is to happen (again)."""
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of a core, from "fake.json".

    Attributes:
        step_s: Duration of a step.
        load_s: Duration of loading.
        load_error: Code of the error that the factory raises.
        load_crash: The factory kills the process.
        notice: A notice that is told as soon as somebody listens.
        import_torch: Record in the info whether OMP_NUM_THREADS was set when the factory ran.
    """

    step_s: float = 0.0
    load_s: float = 0.0
    load_error: str | None = None
    load_crash: bool = False
    notice: str = ""

    @classmethod
    def of(cls, config: EngineConfig) -> Settings:
        path = config.model.paths.get("fake.json")
        return cls() if path is None else cls(**json.loads(path.read_text()))


def fake_config(settings: Path | None = None, **fields: Any) -> EngineConfig:
    """A configuration for this core; `settings` names a JSON file."""
    paths: Mapping[str, Path] = {} if settings is None else {"fake.json": settings}
    model = ModelFiles(name="fake", digest="sha256:0", format="gguf", paths=paths)
    return replace(EngineConfig(model=model), **fields)


def token_at(prompt_key: bytes, seed: int, position: int) -> int:
    digest = hashlib.blake2b(prompt_key, key=seed.to_bytes(8, "little") + position.to_bytes(8, "little"), digest_size=4)
    return int.from_bytes(digest.digest(), "little") % VOCAB


def prompt_key(request: GenerateRequest) -> bytes:
    return hashlib.blake2b(repr(request.prompt).encode(), digest_size=16).digest()


def expected(request: GenerateRequest) -> tuple[tuple[int, ...], FinishReason]:
    """All generated tokens of an undisturbed run, and how it ends."""
    key, tokens = prompt_key(request), list(request.output)
    while (finish := finished(request.sampling, tokens)) is None:
        tokens.append(token_at(key, request.sampling.seed, len(tokens)))
    return tuple(tokens), finish


def finished(sampling: SamplingParams, tokens: list[int]) -> FinishReason | None:
    if tokens and tokens[-1] in sampling.stop_token_ids:
        return "stop"
    return "length" if len(tokens) >= sampling.max_tokens else None


def error_of(code: str) -> EdgewiseError:
    """An instance of the error class with this code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EdgewiseError)]
    return next(kind for kind in kinds if kind.code == code)(f"the fake core says {code}", param="fake")


@dataclass(slots=True)
class Work:
    request: GenerateRequest
    programme: Programme
    key: bytes
    tokens: list[int]
    prefill: int
    started: float = field(default_factory=time.monotonic)


class FakeCore:
    """Implements `engine.core.EngineCore`. Every step advances every request by its burst."""

    def __init__(self, config: EngineConfig, settings: Settings) -> None:
        self._settings = settings
        self._config = config
        self._work: dict[str, Work] = {}
        self._cancelled: list[Work] = []
        self._steps = 0
        self._generated = 0
        self._aborted = 0

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model="fake",
            digest="sha256:0",
            vocab_size=VOCAB,
            max_context=1_000_000,
            dtype="float32",
            kv_dtype="float32",
            quantize="none",
            device=f"omp={os.environ.get('OMP_NUM_THREADS')} torch={'torch' in sys.modules}",
            numeric_class="fake",
            batch_invariant=True,
            num_pages=1000,
            page_tokens=PAGE,
            load_s=self._settings.load_s,
            pid=os.getpid(),
        )

    def add(self, request: GenerateRequest) -> None:
        programme = Programme.of(request.salt)
        if programme.refuse is not None:
            raise error_of(programme.refuse)
        if len(self._work) >= self._config.max_running + self._config.max_waiting:
            raise errors.QueueFull("the fake core is full", retry_after_s=0.1)
        self._work[request.id] = Work(
            request, programme, prompt_key(request), list(request.output), programme.prefill_steps
        )

    def cancel(self, request_id: str) -> None:
        work = self._work.pop(request_id, None)
        if work is not None:
            self._cancelled.append(work)
            self._aborted += 1

    def step(self) -> list[TokenChunk]:
        self._steps += 1
        time.sleep(self._settings.step_s)
        chunks = [self._final(work, "cancelled", len(work.tokens)) for work in self._cancelled]
        self._cancelled.clear()
        for work in list(self._work.values()):
            if work.prefill:
                work.prefill -= 1
                continue
            chunk = self._advance(work)
            chunks.append(chunk)
            if chunk.finish is not None:
                del self._work[work.request.id]
        return chunks

    def _advance(self, work: Work) -> TokenChunk:
        offset = len(work.tokens)
        _mishap(work)
        for _ in range(work.programme.burst):
            if finished(work.request.sampling, work.tokens) is None:
                work.tokens.append(token_at(work.key, work.request.sampling.seed, len(work.tokens)))
                self._generated += 1
        if work.programme.skip_at in range(offset, len(work.tokens)):
            offset += 1
        finish = finished(work.request.sampling, work.tokens)
        if finish is not None:
            return self._final(work, finish, offset)
        return TokenChunk(
            request_id=work.request.id,
            offset=offset,
            tokens=tuple(work.tokens[offset:]),
            logprobs=_logprobs(work, offset),
        )

    def _final(self, work: Work, finish: FinishReason, offset: int) -> TokenChunk:
        return TokenChunk(
            request_id=work.request.id,
            offset=offset,
            tokens=tuple(work.tokens[offset:]),
            logprobs=_logprobs(work, offset),
            finish=finish,
            stats=RequestStats(
                prompt_tokens=len(work.request.prompt),
                cached_tokens=0,
                completion_tokens=len(work.tokens),
                queued_s=0.0,
                prefill_s=0.0,
                decode_s=time.monotonic() - work.started,
            ),
        )

    @property
    def has_work(self) -> bool:
        return bool(self._work or self._cancelled)

    def listen(self, listener: Callable[[str, str], None]) -> None:
        if self._settings.notice:
            listener("fake_notice", self._settings.notice)

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        return {"device": 7, "host": 5} if tier is None else {tier: 5}

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._work),
            pages_total=1000,
            pages_free=1000 - len(self._work),
            steps=self._steps,
            generated_tokens=self._generated,
            aborted=self._aborted,
        )

    def memory(self) -> MemoryReport:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return MemoryReport(budget_bytes=1, available_bytes=1, booked={"descriptors": descriptors})

    def close(self) -> None:
        self._work.clear()


def _logprobs(work: Work, offset: int) -> tuple[TokenLogprobs, ...] | None:
    if work.request.sampling.top_logprobs is None:
        return None
    return tuple(TokenLogprobs(token=token, logprob=-1.0 - token) for token in work.tokens[offset:])


def _mishap(work: Work) -> None:
    programme, reached = work.programme, len(work.tokens)
    if reached == programme.crash_at and programme.due():
        os.kill(os.getpid(), signal.SIGKILL)
    if reached == programme.raise_at and programme.due():
        raise RuntimeError(f"the fake core fails at token {reached}")
    if reached == programme.hang_at and programme.due():
        time.sleep(3600)


def build(config: EngineConfig, progress: Callable[[str, float], None]) -> FakeCore:
    settings = Settings.of(config)
    progress("weights", 0.0)
    time.sleep(settings.load_s)
    if settings.load_crash:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.load_error is not None:
        raise error_of(settings.load_error)
    progress("weights", 1.0)
    return FakeCore(config, settings)
