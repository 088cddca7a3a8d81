"""What the API is given by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgewise.api.events import EventLog
from edgewise.api.metrics import ApiMetrics
from edgewise.api.readiness import Readiness
from edgewise.api.requests import Requests
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.priority import Priority, PriorityName
from edgewise.core.privacy import Labels, PrivacyName
from edgewise.core.sqlite import Database
from edgewise.models.media.sound_limits import MAX_BYTES, MAX_SECONDS
from edgewise.pipeline.batches.files import Files
from edgewise.pipeline.batches.store import Batches
from edgewise.pipeline.conversations import Conversations
from edgewise.pipeline.held import HeldBytes, held_bytes
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.look import FRAMES
from edgewise.pipeline.media import MediaDesk
from edgewise.pipeline.model import Models
from edgewise.pipeline.plan import LocalPlanner, Planner
from edgewise.pipeline.pressure import Pressure, share_reading
from edgewise.pipeline.receipt_store import ReceiptStore
from edgewise.pipeline.recent import RecentInputs
from edgewise.pipeline.state import open_state
from edgewise.security.fetch import FetchPolicy


class KeyRecord(Protocol):
    """A valid API key."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def scopes(self) -> Set[str]:
        """Of "inference", "metrics", "admin"; "admin" includes the others."""

    @property
    def priority(self) -> PriorityName:
        """Deadline class of its requests, and the most urgent that they may ask for."""

    @property
    def privacy(self) -> PrivacyName | None:
        """Label of its requests, which they may only make stricter; None where it has none of its own."""

    @property
    def device(self) -> str | None:
        """The only device that may use it, on a cloud; None for any."""


class KeyVerifier(Protocol):
    """Knows the API keys; implemented by `security.keys.KeyStore`."""

    def verify(self, token: str, /) -> KeyRecord | None:
        """None for a key that is unknown, malformed, expired or revoked. Quick: it runs in the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one client may ask for.

    Attributes:
        max_body_bytes: Larger bodies are answered 413 while they arrive.
        body_timeout_s: A body that takes longer to arrive is answered 408.
        max_concurrent_requests: Generation requests in flight; one more is answered 429.
        max_sequences: Answers (prompts x n) in one request; no more than the engine's queue and batch hold.
        request_timeout_s: Longest time for one answer; None for no limit.
        keepalive_s: Silence after which a stream sends a comment.
        send_timeout_s: A client that takes nothing of its stream for so long is given up.
        model_priority: Deadline class of requests to a model, by its name; see `api.priority`.
        media_bytes: Decoded media that all requests may hold, None for as much as their bounds need (`pipeline.held.held_bytes`);
            `media_spare_bytes` stay free on the machine beside them, which is asked by `media_available` where that is set.
    """

    max_body_bytes: int = 4 * 1024**2
    body_timeout_s: float = 60.0
    max_concurrent_requests: int = 256
    max_sequences: int = 128
    request_timeout_s: float | None = None
    keepalive_s: float = 15.0
    send_timeout_s: float = 120.0
    model_priority: Mapping[str, Priority] = field(default_factory=dict)
    media_bytes: int | None = None
    media_spare_bytes: int = 0
    media_available: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundLimits:
    """Bounds on one recording: bytes as they are sent, and seconds of sound."""

    max_bytes: int = MAX_BYTES
    max_seconds: float = MAX_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may call.

    Attributes:
        require_key: Ask for a key on loopback too; on other addresses one is always needed.
        allowed_origins: Web origins that browsers may call from (CORS); none by default.
        allowed_hosts: Host names that callers without a key may use besides localhost and loopback addresses.
    """

    require_key: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceLimits:
    """Bounds of voice sessions: how many are open, how long each and each turn of its speaker, and how large a message."""

    max_sessions: int = 8
    max_session_s: float = 3600.0
    max_turn_s: float = 60.0
    max_message_bytes: int = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long what callers leave here is kept.

    Attributes:
        responses_s: Seconds since its last use after which an answer of /v1/responses is dropped.
        responses_count: Answers kept for each key.
        file_bytes: Largest file that is taken.
        files_bytes: All files together.
        files_s: Age at which a file, or a batch that has ended, is dropped, unless its owner said otherwise.
        batch_lines: Requests in one batch.
        open_batches: Unfinished batches of each key.
        receipts_s: Age at which plans and receipts are dropped.
    """

    responses_s: float = 30 * 86_400.0
    responses_count: int = 10_000
    file_bytes: int = 64 * 1024**2
    files_bytes: int = 2**30
    files_s: float = 30 * 86_400.0
    batch_lines: int = 50_000
    open_batches: int = 100
    receipts_s: float = 30 * 86_400.0


@dataclass(kw_only=True)
class ApiDependencies:
    """Collaborators of the API; the last three are built here and shared with the service around it.

    Attributes:
        keys: None accepts no key at all: loopback callers only.
        labels: Privacy labels as configured; see `api.privacy`.
        ready_max_age_s: Age at which a token no longer proves that a model answers.
        log_content: Put prompts and answers into the log line of their request; the log's own setting must let them through too.
        state: The service's database; one in memory by default.
        hooks: Plug-ins that see prompts and answers.
        files_folder: Where files of callers are; None keeps none.
        pipelines_folder: Where pipelines are besides those that ship with the package; None for nowhere.
        cache_folder: Where engines store KV pages; None if they do not.
        fetch: What may be fetched for requests that name a URL; None fetches nothing.
        look: Whether pictures in chats are put into words for models without eyes.
        max_image_pixels: That a model with eyes sees of a picture at most; None leaves it to the model.
        pan_and_scan: Whether a model that leaves that open is shown pictures in parts as well; None leaves it to the model.
        film_tokens: That a film takes of a prompt at most.
        look_frames: Pictures of a film that are put into words at most for a model without eyes.
        pressure: How pressed the device is, and what steps down for it.
        limit_engines: Have all engines do less; see `engine.pool.pool.EnginePool.limit`.
        recent: Inputs that were answered lately, for trials of other models.
        requests: Admission and drain; `requests.begin_drain()`, `await requests.wait_idle(s)`, `requests.cut()` end the service.
        events: Events of the service; `events.emit(kind, message, **facts)`.
    """

    models: Models
    keys: KeyVerifier | None = None
    planner: Planner = field(default_factory=LocalPlanner)
    limits: Limits = field(default_factory=Limits)
    voice: VoiceLimits = field(default_factory=VoiceLimits)
    labels: Labels = field(default_factory=Labels)
    access: Access = field(default_factory=Access)
    sound: SoundLimits = field(default_factory=SoundLimits)
    clock: Clock = field(default_factory=SystemClock)
    metrics: ApiMetrics = field(default_factory=ApiMetrics)
    version: str = "0"
    ready_max_age_s: float = 30.0
    log_content: bool = False
    keep: Keeping = field(default_factory=Keeping)
    state: Database = field(default_factory=lambda: open_state(None))
    files_folder: Path | None = None
    pipelines_folder: Path | None = None
    hooks: Hooks = field(default_factory=Hooks)
    cache_folder: Path | None = None
    fetch: FetchPolicy | None = None
    look: bool = True
    max_image_pixels: int | None = None
    pan_and_scan: bool | None = None
    film_tokens: int = 2048
    look_frames: int = FRAMES
    pressure: Pressure = field(default_factory=Pressure)
    end_service: Callable[[int], None] | None = None
    limit_engines: Callable[[float, float], None] | None = None
    conversations: Conversations = field(init=False)
    files: Files = field(init=False)
    batches: Batches = field(init=False)
    receipts: ReceiptStore = field(init=False)
    recent: RecentInputs = field(default_factory=RecentInputs)
    readiness: Readiness = field(init=False)
    requests: Requests = field(init=False)
    events: EventLog = field(init=False)
    media: MediaDesk = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.models, clock=self.clock, max_age_s=self.ready_max_age_s)
        self.requests = Requests(clock=self.clock, limit=self.limits.max_concurrent_requests)
        self.pressure.watch("queue", lambda: share_reading(self.requests.used, "the room for requests"))
        self.readiness.show("pressure", self.pressure.show)
        self.events = EventLog(clock=self.clock)
        self.conversations = Conversations(
            self.state,
            keep_s=self.keep.responses_s,
            keep_count=self.keep.responses_count,
            clock=self.clock,
        )
        self.files = Files(self.state, self.files_folder, total_bytes=self.keep.files_bytes, clock=self.clock)
        self.media = MediaDesk(
            models=self.models,
            files=self.files,
            fetch=self.fetch,
            max_bytes=self.limits.max_body_bytes,
            look=self.look,
            max_pixels=self.max_image_pixels,
            pan_and_scan=self.pan_and_scan,
            film_tokens=self.film_tokens,
            look_frames=self.look_frames,
            labels=self.labels,
            pressure=self.pressure,
            max_seconds=self.sound.max_seconds,
            held=HeldBytes(
                held_bytes(self.limits.media_bytes, self.sound.max_seconds),
                available=self.limits.media_available,
                spare=self.limits.media_spare_bytes,
            ),
        )
        self.metrics.watch_media(self.media.held)
        self.receipts = ReceiptStore(self.state, keep_s=self.keep.receipts_s, clock=self.clock)
        self.batches = Batches(self.state, max_open=self.keep.open_batches, clock=self.clock)

    @property
    def draining(self) -> bool:
        return self.requests.draining
