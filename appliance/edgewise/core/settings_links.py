"""What can be configured of the links to other machines: cloud, placement, broker, and the intake of the cloud engine itself."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from edgewise.core.addresses import is_lan
from edgewise.core.privacy import labels_by_name
from edgewise.core.settings_types import Bytes, ExpandedPath, Seconds, Section, parse_bytes


class CloudSettings(Section):
    """The cloud engine that this device may hand work to; without `url` everything runs here."""

    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$",
        description="Base address of the cloud engine, e.g. `https://cloud.example:8500`; unset: there is none.",
    )
    key: str | None = Field(
        default=None,
        min_length=1,
        description="API key for it, as `edgewise cloud keys new` printed it; `key_file` keeps it out of this file.",
    )
    key_file: ExpandedPath | None = Field(default=None, description="File that holds the key and nothing else.")
    transport: Literal["auto", "http", "mqtt"] = Field(
        default="auto", description='"auto" takes HTTP and, while that is not reachable, MQTT if `mqtt.host` is set.'
    )
    on_loss: Literal["continue", "fail"] = Field(
        default="continue",
        description='What happens to an answer whose cloud is lost for good: "continue" it on the local model after what was '
        'delivered, or "fail".',
    )
    patience_s: Seconds = Field(
        default=10.0,
        description="Seconds that an answer waits for a lost link to come back before it goes on elsewhere.",
    )
    hedge_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="Begin an answer on the other side too if no token came within so many seconds; the first wins, both are "
        "paid. 0 never.",
    )
    latents: Literal["auto", "never"] = Field(
        default="auto",
        description="Whether pictures that the cloud draws with a model that is loaded here too come down as latents and are "
        'decoded here: "auto" where those are fewer bytes than the finished picture, or "never".',
    )
    ca_file: ExpandedPath | None = Field(
        default=None,
        description="PEM file of the authority that signed the cloud's certificate; unset trusts those of the system.",
    )

    @model_validator(mode="after")
    def _one_key(self) -> CloudSettings:
        if self.key is not None and self.key_file is not None:
            raise ValueError("set cloud.key or cloud.key_file, not both")
        return self


_POLICIES = ("balanced", "prefer-local", "prefer-cloud", "prefer-peer", "cheapest", "fastest", "local-only")
PolicyText = Literal["balanced", "prefer-local", "prefer-cloud", "prefer-peer", "cheapest", "fastest", "local-only"]


def _check_policies(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        name, separator, policy = value.partition("=")
        if not name or not separator or policy not in _POLICIES:
            raise ValueError(f"{value!r}: write NAME=POLICY, where POLICY is one of {', '.join(_POLICIES)}")
    return values


def _check_labels(values: tuple[str, ...]) -> tuple[str, ...]:
    labels_by_name(values)
    return values


class PlacementSettings(Section):
    """How a place is chosen for each stage of a request; see docs/placement.md."""

    policy: PolicyText = Field(default="balanced", description="What is preferred among the places that are possible.")
    policies: Annotated[tuple[str, ...], AfterValidator(_check_policies)] = Field(
        default=(),
        description="The same for single models or deadline classes, as `starter=local-only` or `bulk=cheapest`; a model's "
        "goes before a class's.",
    )
    privacy: Literal["private", "site", "any"] = Field(
        default="any",
        description="Label of requests whose key and model have none. Of several labels the strictest counts, and the header "
        "`X-Edgewise-Privacy` may only make it stricter.",
    )
    model_privacy: Annotated[tuple[str, ...], AfterValidator(_check_labels)] = Field(
        default=(), description="Labels of models, as `medical=private`."
    )
    daily_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)] | None = Field(
        default=None, description='Bytes that may cross the link a day, e.g. "200 MiB"; unset sets no limit.'
    )
    daily_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Money that cloud work may cost a day, in the currency of its prices; unset: no limit.",
    )
    idle_watts: float = Field(default=0.0, ge=0, description="Power of the idle device in watts, for energy estimates.")
    busy_watts: float = Field(
        default=0.0, ge=0, description="Power of the computing device in watts; 0 where it is unknown."
    )
    keep_days: float = Field(default=30.0, gt=0, description="Days for which plans and receipts are kept.")


def _check_peers(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            parts = urlsplit(value)
            plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
            good = parts.scheme in ("http", "https") and plain and is_lan(parts.hostname or "")
            _ = parts.port
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"{value!r}: write http:// or https://, a private address (no name) and a port")
    return values


def _check_peer(value: str) -> str:
    return _check_peers((value,))[0]


def _check_peer_keys(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if re.fullmatch(r"(local|[0-9a-z]{8})=.+", value) is None:
            raise ValueError(f"{value!r}: write ID=FILE with the id of a key of this device, or local=FILE")
    return values


class PeersSettings(Section):
    """Other appliances of the same network: one that stages may run on (docs/placement.md), and those from which KV pages of long
    prompts are fetched (docs/kv-handover.md)."""

    engine: Annotated[str, AfterValidator(_check_peer)] | None = Field(
        default=None,
        description="Base address of an appliance that stages may run on, as `http://192.168.1.30:8500`: a private address "
        "where `edgewise cloud` runs with `intake.site`. `cloud.patience_s`, `on_loss` and `hedge_s` hold for it too.",
    )
    engine_key_file: ExpandedPath | None = Field(
        default=None, description="File that holds the key for it, as `edgewise cloud keys new` printed it there."
    )
    serve: bool = Field(
        default=False, description="Give KV pages to appliances that send a key of this one, each key its own."
    )
    urls: Annotated[tuple[str, ...], AfterValidator(_check_peers)] = Field(
        default=(),
        description="Base addresses of appliances that are asked, as `https://192.168.1.20:8400`: private addresses only.",
    )
    keys: Annotated[tuple[str, ...], AfterValidator(_check_peer_keys)] = Field(
        default=(),
        description="Whose pages are asked for there, as `ID=FILE`: the id of a key of this device (`edgewise keys list`), or "
        "`local` for callers without one, and the file with the same user's key there.",
    )
    ca_file: ExpandedPath | None = Field(
        default=None, description="PEM file of the authority that signed their certificates; unset: the system's."
    )
    memory_bytes: Bytes = Field(
        default=256 * 1024**2,
        description="Host memory in which fetched pages arrive, unless `engine.host_cache_bytes` is more.",
    )
    int4: bool = Field(
        default=False,
        description="Take pages rounded to 4 bits where the link is too slow for exact ones and `edgewise models gate` has "
        "passed it for the model. Such an answer can differ from that of exact pages, and its receipt says so.",
    )
    min_tokens: PositiveInt = Field(
        default=512, description="Tokens that a hand-over must spare at least for a peer to be asked."
    )


class MqttSettings(Section):
    """The broker, for work over MQTT where HTTP does not reach."""

    host: str | None = Field(default=None, min_length=1, description="Name or address of the broker; unset: no MQTT.")
    port: int = Field(default=1883, gt=0, le=65535, description="Its TCP port; 8883 with TLS.")
    uid: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of this device, as user and client id too; unset takes one drawn at the first start.",
    )
    password_file: ExpandedPath | None = Field(
        default=None, description="File that holds the password and nothing else; the user name is `uid`."
    )
    ca_file: ExpandedPath | None = Field(
        default=None, description="PEM file of the authority that signed the broker's certificate; turns TLS on."
    )
    cert_file: ExpandedPath | None = Field(
        default=None, description="PEM file of this device's certificate, which enrolment writes; needs `key_file`."
    )
    key_file: ExpandedPath | None = Field(default=None, description="PEM file of its private key.")
    keepalive_s: int = Field(default=30, gt=0, le=65535, description="Keep-alive interval in seconds.")


class OutboxSettings(Section):
    """Deferred jobs, which wait here until they can be answered and their results are fetched or delivered; see docs/jobs.md."""

    concurrency: PositiveInt = Field(default=2, description="Jobs under way at once.")
    max_open: PositiveInt = Field(
        default=1000, description="Jobs of each key that have not ended; one more is answered 429."
    )
    total_bytes: Bytes = Field(
        default=256 * 1024**2, description="Requests and results of all jobs together; more is answered 507."
    )
    ttl_s: Seconds = Field(
        default=7 * 86_400.0,
        description="Longest time in seconds for which a job may wait, and that of one that names none.",
    )
    keep_days: float = Field(
        default=7.0,
        gt=0,
        description="Days for which results are kept and their delivery is tried, unless deleted before.",
    )
    webhook_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts of webhooks that may lie at private addresses, as `hub.local`; as `http://hub.local` also without "
        "TLS. Public hosts need not be named.",
    )
    webhook_secret_file: ExpandedPath | None = Field(
        default=None,
        description="File that holds the secret with which deliveries are signed, as text or as `whsec_` and base64; unset "
        "sends them unsigned.",
    )
    webhook_timeout_s: Seconds = Field(
        default=15.0, description="Seconds after which a receiver that has not answered is tried again later."
    )


_NUMBER = r"[0-9]+(\.[0-9]+)?"


def _check_quotas(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if re.fullmatch(rf"[^=]+\.(requests|concurrent|streams|tokens|seconds|price)={_NUMBER}", value) is None:
            raise ValueError(f"{value!r}: write NAME.requests=NUMBER, or concurrent, streams, tokens, seconds or price")
    return values


def _check_prices(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if re.fullmatch(rf"[^=]+={_NUMBER},{_NUMBER}", value) is None:
            raise ValueError(f"{value!r}: write MODEL=IN,OUT, two prices per 1,000 items")
    return values


def _check_ray_address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    good = re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", host) is not None and port.isascii() and port.isdecimal()
    if not separator or not good or not 0 < int(port) < 65536:
        raise ValueError(
            f"{value!r}: write host:port of the cluster's head, as 10.0.0.5:6379 (no ray://, which is for clients from outside)"
        )
    return value


class IntakeSettings(Section):
    """What `edgewise cloud` takes from devices."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address that the cloud engine listens on; 0.0.0.0 or :: for all.",
    )
    port: int = Field(default=8500, ge=0, le=65535, description="Its TCP port; 0 takes a free one.")
    executor: Literal["local", "ray", "http"] = Field(
        default="local",
        description='Where jobs are worked off: "local" engine processes, "ray" actors, or "http" for another server with an '
        "OpenAI-compatible API.",
    )
    upstream: str | None = Field(
        default=None, pattern=r"^https?://[^\s?#@]+$", description='Base address of that server with "/v1", for "http".'
    )
    upstream_key_file: ExpandedPath | None = Field(default=None, description="File that holds the key for it.")
    replicas: PositiveInt = Field(default=1, description='Engines of each model, for "ray".')
    ray_address: Annotated[str, AfterValidator(_check_ray_address)] | None = Field(
        default=None,
        description="Address and port of the head of a Ray cluster that this machine is a node of, as `10.0.0.5:6379`, for "
        '"ray"; unset starts Ray on this machine (docs/executors.md).',
    )
    workers: PositiveInt = Field(default=32, description="Jobs that are worked off at once.")
    lease_s: Seconds = Field(
        default=15.0, description="Seconds without a sign of life after which a job's worker has lost it."
    )
    max_attempts: PositiveInt = Field(
        default=5, description="Attempts in a row that add nothing to a stream before its job fails."
    )
    max_queued: PositiveInt = Field(default=1000, description="Jobs that may wait; one more is answered 429.")
    retain_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds for which prompts and results are kept after they were acknowledged; 0 drops them at once.",
    )
    unclaimed_s: Seconds = Field(
        default=86_400.0, description="Seconds after which results that nobody acknowledged are dropped."
    )
    residency: str = Field(default="", max_length=40, description='Tag of where data are computed, e.g. "eu".')
    site: bool = Field(
        default=False,
        description="This engine belongs to the devices' own site: it takes work labelled `site`, as a peer (docs/placement.md).",
    )
    max_request_bytes: Bytes = Field(default=8 * 1024**2, description="Largest job request.")
    max_blob_bytes: Bytes = Field(default=64 * 1024**2, description="Largest blob.")
    tenant_blob_bytes: Bytes = Field(default=2 * 1024**3, description="All blobs of one tenant.")
    quotas: Annotated[tuple[str, ...], AfterValidator(_check_quotas)] = Field(
        default=(),
        description="Limits of single keys, as `NAME.requests=1000` (a day), `NAME.concurrent=4`, `NAME.streams=8` (jobs "
        "whose streams are read at once), `NAME.tokens=100000` (a day), `NAME.seconds=600` (of computing, a day) or "
        "`NAME.price=5` (a day); NAME `*` for all keys.",
    )
    prices: Annotated[tuple[str, ...], AfterValidator(_check_prices)] = Field(
        default=(), description="Prices per 1,000 tokens or steps, as `MODEL=IN,OUT`; for receipts and budgets."
    )

    @model_validator(mode="after")
    def _site_stays(self) -> IntakeSettings:
        """What is labelled `site` may not leave by the back door."""
        outside = self.upstream is not None and not is_lan(urlsplit(self.upstream).hostname or "")
        if self.site and self.executor == "http" and outside:
            raise ValueError("intake.site keeps work in the site: let intake.upstream name a private address")
        cluster = self.ray_address is not None and not is_lan(self.ray_address.rpartition(":")[0].strip("[]"))
        if self.site and self.executor == "ray" and cluster:
            raise ValueError("intake.site keeps work in the site: let intake.ray_address be a private address")
        return self
