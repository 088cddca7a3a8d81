"""The engine as its callers see it: a protocol, implemented by `engine.client` (a supervised process) and by test doubles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from edgewise.engine.request import GenerateRequest, TokenChunk
from edgewise.models.multimodal.media import MediaKind

CacheTier = Literal["device", "host", "disk"]
EngineState = Literal["stopped", "starting", "ready", "restarting", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a ready engine holds.

    Attributes:
        numeric_class: Back end, dtypes, formats and device family in one string; inside one class a continuation is byte-equal.
        max_context: Largest prompt + answer in tokens.
        num_pages, page_tokens: Size of the KV cache.
        kv_fingerprint: Digest of everything that the bits of a KV page depend on besides its tokens: weights, numeric class, page
            size, tokenizer, template, and the layout of a page. Pages mean the same in engines that have it in common.
        kv_page_bytes: Bytes of a KV page.
        kv_int4_page_bytes: Bytes of one that is rounded to 4 bits for its way to another appliance.
        media: Kinds of media that prompts may hold.
        model_context: Positions that the model was made for; `max_context` may be less.
        voices: In which it can speak its answers.
        kernels: Which kernels compute the model: "reference", "native" or "triton".
        kernels_lacking: What keeps "auto" from native kernels, or on a GPU from Triton's; empty if nothing.
        devices: How many compute the model together.
    """

    model: str
    digest: str
    vocab_size: int
    max_context: int
    dtype: str
    kv_dtype: str
    quantize: str
    device: str
    numeric_class: str
    batch_invariant: bool
    num_pages: int
    page_tokens: int
    load_s: float
    pid: int
    kv_fingerprint: str = ""
    kv_page_bytes: int = 0
    kv_int4_page_bytes: int = 0
    media: tuple[MediaKind, ...] = ()
    model_context: int = 0
    voices: tuple[str, ...] = ()
    kernels: str = "reference"
    kernels_lacking: str = ""
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges and counters of the engine at one moment; published on /metrics.

    Those of the tiers count pages: what they hold now, and since the engine's start how many were found (`hits`), not found,
    refused because a file did not pass its checks (files), and not written (`dropped`). `disk_off` is 1 while the disk takes
    no writes. `spill_bytes` are promised to pages of preempted requests, of at most `spill_limit_bytes`; `spilled_pages` and
    `unspilled_pages` count what has moved out and back. `pages_unfilled` is the room behind the last token of running
    sequences, in pages: others cannot use it, and at most the last page of each sequence has any. `proposed_tokens` were guessed
    and computed (`engine.speculation`), and `accepted_tokens` of them were right. `adapters` are in
    memory, in `adapter_bytes`. Those of the encoder cache
    count media whose rows are kept, media that prompts came to whose rows were there (hits) or had to be made, and that had to
    go for others (evictions). `encoder_seconds` are those that encoders have taken in all, whatever the engine's kind.
    """

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_unfilled: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    spill_bytes: int = 0
    spill_limit_bytes: int = 0
    spilled_pages: int = 0
    unspilled_pages: int = 0
    host_pages: int = 0
    host_bytes: int = 0
    host_limit_bytes: int = 0
    host_hits: int = 0
    host_misses: int = 0
    disk_pages: int = 0
    disk_bytes: int = 0
    disk_hits: int = 0
    disk_misses: int = 0
    disk_refused: int = 0
    disk_dropped: int = 0
    disk_off: int = 0
    adapters: int = 0
    adapter_bytes: int = 0
    encoder_cache_items: int = 0
    encoder_cache_bytes: int = 0
    encoder_cache_limit_bytes: int = 0
    encoder_cache_hits: int = 0
    encoder_cache_misses: int = 0
    encoder_cache_evictions: int = 0
    encoder_seconds: float = 0.0
    devices: int = 1
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The memory ledger: bytes booked by purpose, the budget, and what the system says is available."""

    budget_bytes: int
    available_bytes: int
    booked: Mapping[str, int] = field(default_factory=dict)


class TokenStream(Protocol):
    """The answer to one submitted request; an async iterator of `TokenChunk` that ends after the chunk with `finish` set."""

    def __aiter__(self) -> AsyncIterator[TokenChunk]: ...

    async def __anext__(self) -> TokenChunk: ...

    async def aclose(self) -> None:
        """Cancel if still running: the engine frees its pages within one step. Safe to call twice."""


class Engine(Protocol):
    """Submit and observe; every method may be called from the service's event loop and never blocks it."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> EngineInfo | None:
        """None until the engine has been ready once."""

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """Queue a request; returns once the engine has accepted it.

        Raises:
            QueueFull: A queue limit is reached.
            EngineUnavailable: The engine did not come up within the caller's patience, or has failed for good.
            InvalidRequest, ContextLengthExceeded: The request can never run.
        """

    async def stats(self) -> EngineStats: ...

    async def memory(self) -> MemoryReport: ...

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        """Make a running engine forget its cached pages of one tier, or of all; returns how many by tier, nothing if none runs.

        Raises:
            EngineUnavailable: It did not answer in time.
        """
