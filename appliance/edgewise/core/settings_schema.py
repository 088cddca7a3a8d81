"""What can be configured: one frozen model. `core.settings` fills it; the reference in docs is generated from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from edgewise.core.addresses import connectable, is_loopback
from edgewise.core.priority import priorities_by_name
from edgewise.core.settings_fleet import AgentSettings, FleetSettings
from edgewise.core.settings_links import (
    CloudSettings,
    IntakeSettings,
    MqttSettings,
    OutboxSettings,
    PeersSettings,
    PlacementSettings,
)
from edgewise.core.settings_types import Bytes, ExpandedPath, Seconds, Section, parse_bytes
from edgewise.core.settings_voice import VoiceSettings

DEFAULT_CONFIG_FILE = Path("/etc/edgewise/edgewise.toml")


def _named_classes(entries: tuple[str, ...]) -> tuple[str, ...]:
    priorities_by_name(entries)
    return entries


class EngineSettings(Section):
    """How the engine uses the machine."""

    device: str = Field(
        default="auto", min_length=1, description='"auto" takes CUDA if it is usable, else the CPU; or "cpu", "cuda".'
    )
    kernels: Literal["auto", "reference", "native", "triton"] = Field(
        default="auto",
        description='Who computes: "native" is C++ for the CPU, "reference" is PyTorch; "auto" takes native where it can.',
    )
    tensor_parallel: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="Devices that compute a model together, each a share of every layer: GPUs, or processes on a CPU; "
        '"auto" is 1.',
    )
    kernel_tuning: Literal["cached", "load", "off"] = Field(
        default="cached",
        description='How kernels on a GPU are launched: "cached" as `edgewise kernels tune` measured on this card, "load" '
        'measures at load where that is missing (minutes, once for a card, driver and model shape), "off" always by defaults.',
    )
    encoder_tuning: Literal["load", "off"] = Field(
        default="load",
        description='Encoders of texts, pictures and sound: "load" measures quicker forms beside the first requests, at lowest '
        'priority (minutes, once for a processor, runtime and model), "off" only by `edgewise models encoders --measure`.',
    )
    max_context: PositiveInt | None = Field(
        default=None, description="Largest prompt plus answer in tokens; unset takes the model's own."
    )
    kv_memory_bytes: Bytes | None = Field(
        default=None,
        description='Size of the KV cache, e.g. "2 GiB"; unset lets the engine choose from what is available.',
    )
    memory_fraction: float = Field(
        default=0.8, gt=0, le=1, description="Share of the memory available at start that all engines may book."
    )
    memory_budget_bytes: Bytes | None = Field(
        default=None,
        description='What all engines together may book, e.g. "6 GiB"; unset takes `memory_fraction` of what is available.',
    )
    max_running: PositiveInt = Field(default=32, description="Sequences that are computed together.")
    max_waiting: int = Field(default=256, ge=0, description="Sequences that may wait; one more is answered 429.")
    max_pictures: PositiveInt = Field(
        default=8, description="Pictures that are drawn at the same time, by each picture model."
    )
    max_picture_batch: PositiveInt = Field(
        default=4, description="Pictures of one shape that take a step together; more of them need more memory."
    )
    offload_pictures: bool = Field(
        default=False,
        description="Keep the parts of a pipeline of diffusers that are not at work in host memory; on a GPU only. It draws more "
        "slowly with less GPU memory.",
    )
    max_step_tokens: PositiveInt = Field(
        default=512, description="Largest number of tokens in one step; bounds a chunk of a long prompt."
    )
    prefill_step_s: Seconds = Field(
        default=0.05,
        description="Longest time in seconds that a step spends on prompts while no answer is being written, as far as that "
        "is efficient; a more urgent request waits for no more than the step under way.",
    )
    stream_interval_s: float = Field(
        default=0.04,
        ge=0,
        le=1,
        description="Longest time in seconds that a token waits to be sent together with the next ones, where steps are quicker "
        "than that, up to three times as long with many answers at once; an answer's first token and its end never wait. 0 sends "
        "each token by itself, which costs processor time.",
    )
    ageing_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds in the queue after which a background or bulk request counts as one class more urgent, at most "
        "interactive; 0 never promotes.",
    )
    spill_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)] | None = Field(
        default=None,
        description='Host memory for the pages of preempted requests, e.g. "256 MiB"; unset takes up to the size of the KV '
        "cache from what is left, 0 computes them again.",
    )
    encoder_cache_bytes: Bytes = Field(
        default=128 << 20,
        description="Memory of the device for what pictures, film and sound in prompts were encoded to, for each loaded model "
        "that takes them; one of them must fit.",
    )
    media_bytes: Bytes = Field(
        default=256 << 20,
        description="Bytes of decoded pictures, film and sound that the requests in work on one model may hold in all; one more "
        "is answered 429.",
    )
    adapter_bytes: Bytes = Field(
        default=64 << 20,
        description="Memory of the device for low-rank adapters (LoRA) in use, for each loaded model that has some.",
    )
    speculation: Literal["auto", "off", "lookup", "draft"] = Field(
        default="auto",
        description='Guess next tokens and check several at once: "auto" where it is measured to pay, "lookup" always from '
        'what stood before, "draft" always, by `draft_model` as well, "off" never. Answers stay the same.',
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="An installed, smaller model with the same vocabulary that guesses next tokens; unset: none.",
    )
    threads: PositiveInt | None = Field(
        default=None, description="CPU threads for kernels, of native ones 64 at most; unset takes all cores."
    )
    prefix_cache: bool = Field(default=True, description="Reuse the KV pages of equal beginnings of prompts.")
    host_cache_bytes: Bytes | None = Field(
        default=None,
        description='Host memory for KV pages that had to leave the device, e.g. "1 GiB", for each loaded model; unset for none.',
    )
    disk_cache_bytes: Bytes | None = Field(
        default=None,
        description='Disk space for KV pages, which then outlive a restart, e.g. "4 GiB", for all models together; unset: none. '
        "What lies there is as personal as the prompts it was computed from.",
    )
    disk_cache_dir: ExpandedPath | None = Field(
        default=None, description="Folder of the KV pages on disk; unset takes kv-cache in the state directory."
    )

    @property
    def devices(self) -> int:
        """What `tensor_parallel` means."""
        return 1 if self.tensor_parallel == "auto" else self.tensor_parallel


def _check_keep_alives(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        name, _, seconds = value.partition("=")
        if not name or re.fullmatch(r"-1|[0-9]+(\.[0-9]+)?", seconds) is None:
            raise ValueError(f"{value!r}: write NAME=SECONDS, -1 for ever")
    return values


class PoolSettings(Section):
    """Several models in one service: what stays loaded, and how long."""

    pinned: tuple[str, ...] = Field(
        default=(), description="Models that are loaded at start and never unloaded, besides `model`."
    )
    pin_model: bool = Field(
        default=True,
        description="Whether `model` is pinned too; if not, it is loaded at start and unloaded when another needs its room.",
    )
    keep_alive_s: float = Field(
        default=300.0,
        ge=-1,
        allow_inf_nan=False,
        description="Seconds that a model stays loaded after its last answer; -1 for ever, 0 not at all.",
    )
    keep_alive: Annotated[tuple[str, ...], AfterValidator(_check_keep_alives)] = Field(
        default=(), description='The same for single models, as "NAME=SECONDS".'
    )
    wait_s: Seconds = Field(
        default=30.0, description="Seconds that a request waits for memory that a writing model holds; then 503."
    )
    retry_s: Seconds = Field(
        default=5.0, description="Seconds after a failed load in which the failure is answered without another try."
    )


class LimitsSettings(Section):
    """What one client may ask for."""

    max_body_bytes: Bytes = Field(
        default=4 * 1024**2, description='Largest request body, e.g. "4 MiB"; more is answered 413.'
    )
    max_concurrent_requests: PositiveInt = Field(
        default=256, description="Requests in progress; one more is answered 429."
    )
    media_bytes: Bytes | None = Field(
        default=None,
        description="Memory for decoded pictures, film and sound of all requests, booked before they are decoded; as much, but "
        "at most an eighth of what models may take, is kept free of these. A request that alone takes more is answered 413, one "
        "that finds no room 503. Unset: 512 MiB, in proportion more where `audio.max_seconds` is above an hour.",
    )
    request_timeout_s: Seconds | None = Field(
        default=None, description="Longest time for one answer in seconds; unset sets no limit."
    )
    model_priority: Annotated[tuple[str, ...], AfterValidator(_named_classes)] = Field(
        default=(),
        description="Deadline classes of models, as `starter=background`; a request without the header "
        "`X-Edgewise-Priority` gets the less urgent of its key's and its model's class.",
    )
    keepalive_s: Seconds = Field(
        default=15.0, description="Seconds of silence after which a stream sends a comment line."
    )


class TlsSettings(Section):
    """Serve HTTPS with this certificate; both keys or neither."""

    cert: ExpandedPath | None = Field(default=None, description="PEM file with the certificate and its chain.")
    key: ExpandedPath | None = Field(default=None, description="PEM file with the private key, without a passphrase.")

    @model_validator(mode="after")
    def _both_or_neither(self) -> TlsSettings:
        if (self.cert is None) != (self.key is None):
            raise ValueError("set both tls.cert and tls.key, or neither")
        return self


class SecuritySettings(Section):
    """Who may call the API."""

    require_key: bool = Field(
        default=False, description="Ask for an API key on loopback too; on any other address one is always needed."
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="Web origins that browsers may call from (CORS), e.g. `https://app.example`."
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="Names by which clients may address the service besides its own addresses."
    )


class SourcesSettings(Section):
    """Where `edgewise models pull` finds models."""

    hub_endpoint: str = Field(
        default="https://huggingface.co",
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$",
        description="Base address of the hub that `hf:` means, or of a mirror of it.",
    )
    hub_token_file: ExpandedPath | None = Field(
        default=None,
        description="File that holds the hub's access token and nothing else; unset takes the variable HF_TOKEN, if set.",
    )
    registry_auth_file: ExpandedPath | None = Field(
        default=None, description="Credentials for `oci:` registries, in the form of Docker's config.json."
    )
    local_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts that may lie at private addresses, as `nas.local`; as `http://nas.local` also without TLS.",
    )


class VisionSettings(Section):
    """Pictures in chats."""

    look: bool = Field(
        default=True,
        description="Have installed models that read text and name things look at pictures and films for a language model "
        "without eyes; off refuses both for such a model.",
    )
    look_frames: int = Field(
        default=8,
        ge=1,
        le=32,
        description="Pictures of a film that these models look at, at most; reading one takes about a second of a core.",
    )
    max_pixels: PositiveInt | None = Field(
        default=None,
        description="Pixels (width x height) that a model with eyes sees of a picture at most; unset leaves it to the model.",
    )
    pan_and_scan: bool | None = Field(
        default=None,
        description="Show long pictures in parts as well to models that leave that open (Gemma 3): more of them is read, for as "
        "many tokens again with each part; unset leaves it to the model's files.",
    )
    film_tokens: PositiveInt = Field(
        default=2048, description="Tokens of the prompt that a film takes at most; frames are fewer and smaller for it."
    )


class AudioSettings(Section):
    """Recordings that are transcribed."""

    max_bytes: Bytes = Field(default=25 * 1024**2, description='Largest file, e.g. "25 MiB"; more is refused.')
    max_seconds: Seconds = Field(default=3600.0, description="Longest recording in seconds; more is refused.")


class ResponsesSettings(Section):
    """Answers of /v1/responses that are kept, so that they can be continued."""

    keep_days: float = Field(
        default=30.0, gt=0, description="Days since its last use after which a kept answer is dropped."
    )
    keep_count: PositiveInt = Field(
        default=10_000, description="Answers kept for each key; the longest unused go first."
    )


class FilesSettings(Section):
    """Files of batches."""

    max_bytes: Bytes = Field(default=64 * 1024**2, description='Largest file that is taken, e.g. "64 MiB".')
    total_bytes: Bytes = Field(default=2**30, description="All files of all keys together; more is answered 507.")
    keep_days: float = Field(
        default=30.0,
        gt=0,
        description="Days after which a file, or a batch that has ended, is dropped, unless its owner said otherwise.",
    )


class BatchesSettings(Section):
    """Batches, which are worked off behind everybody who waits for an answer."""

    concurrency: PositiveInt = Field(default=4, description="Lines under way at once.")
    max_lines: PositiveInt = Field(default=50_000, description="Requests in one batch.")
    max_open: PositiveInt = Field(default=100, description="Unfinished batches of each key; one more is answered 429.")


class HooksSettings(Section):
    """Plug-ins that see prompts and answers; see docs/hooks.md."""

    enabled: tuple[str, ...] = Field(
        default=(), description="Hooks by name, in the order in which they are asked, e.g. `word-filter`, `audit-log`."
    )
    options: tuple[str, ...] = Field(
        default=(), description="Options of enabled hooks, as `word-filter.file=/etc/edgewise/words.txt`."
    )
    on_error: Literal["refuse", "allow"] = Field(
        default="refuse", description='What the fault of a hook does: "refuse" the request, or "allow" it unchecked.'
    )
    timeout_s: Seconds = Field(default=10.0, description="Seconds after which a hook that does not answer has failed.")


class LogSettings(Section):
    """What is written to the log, which goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level that is logged."
    )
    format: Literal["json", "console", "auto"] = Field(
        default="auto", description='"auto" is console on a terminal, else JSON lines.'
    )
    prompts: bool = Field(
        default=False, description="Log prompts and answers too. Off unless you need them and may keep them."
    )


class Settings(Section):
    """Everything that can be configured."""

    home: ExpandedPath = Field(
        default=Path("~/.local/share/edgewise"),
        validate_default=True,
        description="State directory: models, keys, own catalog entries; for the systemd service /var/lib/edgewise.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 or :: for all.")
    port: int = Field(default=8400, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    model: str = Field(
        default="starter",
        min_length=1,
        description="Model that is loaded at start, by its name in the store; it stays unless `pool.pin_model` is off.",
    )
    models: tuple[str, ...] = Field(
        default=(), description="Models that may be asked besides the pinned ones; empty: all installed."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Data type of computation."
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"] = Field(
        default="auto",
        description='Format of the KV cache; "auto" takes what `edgewise models gate` found good for the model, else fp8 on '
        "CUDA devices that compute with it and int8 elsewhere.",
    )
    quantize: Literal["auto", "none", "int8", "int4", "fp8"] = Field(
        default="auto",
        description='How weights are held and multiplied; "auto" as the file stores them, as far as the kernels have products '
        "for that (the reference kernels unpack all weights). fp8: on CUDA devices of capability 8.9 and above.",
    )
    drain_s: float = Field(
        default=20.0,
        ge=0,
        le=3600,
        description="Seconds that running requests get to finish after SIGTERM; see TimeoutStopSec of the unit.",
    )
    offline: bool = Field(default=False, description="Never use a network to fetch models; `file:` sources go on.")
    engine: EngineSettings = EngineSettings()
    pool: PoolSettings = PoolSettings()
    limits: LimitsSettings = LimitsSettings()
    tls: TlsSettings = TlsSettings()
    security: SecuritySettings = SecuritySettings()
    sources: SourcesSettings = SourcesSettings()
    vision: VisionSettings = VisionSettings()
    voice: VoiceSettings = VoiceSettings()
    audio: AudioSettings = AudioSettings()
    responses: ResponsesSettings = ResponsesSettings()
    files: FilesSettings = FilesSettings()
    batches: BatchesSettings = BatchesSettings()
    hooks: HooksSettings = HooksSettings()
    cloud: CloudSettings = CloudSettings()
    placement: PlacementSettings = PlacementSettings()
    outbox: OutboxSettings = OutboxSettings()
    peers: PeersSettings = PeersSettings()
    mqtt: MqttSettings = MqttSettings()
    agent: AgentSettings = AgentSettings()
    fleet: FleetSettings = FleetSettings()
    intake: IntakeSettings = IntakeSettings()
    log: LogSettings = LogSettings()

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can reach the service."""
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def keys_file(self) -> Path:
        return self.home / "keys.db"

    @property
    def state_file(self) -> Path:
        """Kept answers and batches."""
        return self.home / "state.db"

    @property
    def outbox_file(self) -> Path:
        """Deferred jobs and their results."""
        return self.home / "outbox.db"

    @property
    def files_folder(self) -> Path:
        return self.home / "files"

    @property
    def pipelines_folder(self) -> Path:
        """Pipelines of this device, one a TOML file."""
        return self.home / "pipelines"

    @property
    def kv_cache_dir(self) -> Path:
        """Folder of the KV cache's disk tier, whether it is in use or not."""
        return self.engine.disk_cache_dir or self.home / "kv-cache"

    @property
    def base_url(self) -> str:
        """Where a program on this machine reaches the service."""
        host = connectable(self.host)
        scheme = "https" if self.tls.cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
