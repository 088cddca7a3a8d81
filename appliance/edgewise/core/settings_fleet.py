"""What can be configured of the fleet: the device's agent, and the fleet service with its console."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from edgewise.core.settings_types import Bytes, ExpandedPath, Seconds, Section, parse_bytes


class AgentSettings(Section):
    """The device's agent: presence, commands and desired state over MQTT; see docs/agent.md. It runs where `mqtt.host` is set."""

    enabled: bool = Field(
        default=True,
        description="Let a fleet steer this device once a broker is known; false leaves the broker to jobs.",
    )
    name: str = Field(default="", max_length=128, description="Name for people; unset shows the host's name.")
    telemetry_s: Seconds = Field(
        default=10.0, description="Seconds between samples, unless the fleet's policy says otherwise."
    )
    daily_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)] | None = Field(
        default=None,
        description='Bytes that telemetry, logs and events may take a day, e.g. "20 MiB"; unset: no limit.',
    )
    outbox_bytes: Bytes = Field(
        default=64 * 1024**2,
        description="What waits for the fleet at most; telemetry is thinned first, results are never dropped.",
    )
    keep_days: float = Field(default=7.0, gt=0, description="Days for which results of commands are kept.")
    governor: bool = Field(
        default=True, description="Act before the hardware throttles: smaller batches, offload if allowed."
    )
    max_temperature_c: float = Field(
        default=85.0, gt=0, le=150, description="Degrees Celsius at which the governor has cut down to the least."
    )
    site_topics: bool = Field(
        default=False, description="Publish state as `edgewise/<name>/...` for a plant's or home's own systems."
    )
    home_assistant: bool = Field(default=False, description="Announce sensors to Home Assistant too.")


class FleetSettings(Section):
    """The fleet service with its console (`edgewise fleet`); see docs/fleet.md."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address that the service listens on.")
    port: int = Field(default=8600, ge=0, le=65535, description="Its TCP port; 0 takes a free one.")
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#@]+$",
        description="Address under which people and devices reach it; unset: host and port.",
    )
    database: str | None = Field(
        default=None,
        min_length=1,
        description="SQLAlchemy URL, as `postgresql+psycopg://user@host/edgewise`; unset: SQLite in the state directory.",
    )
    broker: Literal["local", "external"] = Field(
        default="local",
        description='"local" starts a broker for this one machine at `mqtt.port` on loopback; "external" uses that of `[mqtt]`.',
    )
    broker_url: str | None = Field(
        default=None,
        pattern=r"^mqtts?://[^\s/?#@]+$",
        description="Where devices reach the broker, told at enrolment; unset: the address of this service and `mqtt.port`.",
    )
    cloud_url: str | None = Field(
        default=None, pattern=r"^https?://[^\s?#@]+$", description="Cloud engine that devices are told of at enrolment."
    )
    cloud_keys: ExpandedPath | None = Field(
        default=None,
        description="`keys.db` of that engine, where it runs on this machine: claim codes made with `--cloud` then give devices "
        "a key for it.",
    )
    certificate_days: float = Field(default=90.0, gt=0, le=3650, description="Life of a device's certificate in days.")
    session_s: Seconds = Field(default=12 * 3600.0, description="Seconds after which a person must log in again.")
    grace_s: Seconds = Field(
        default=5.0, description="Seconds for which a device may be gone before it counts as offline."
    )
    raw_hours: float = Field(default=24.0, gt=0, description="Hours for which single samples are kept.")
    minute_days: float = Field(default=7.0, gt=0, description="Days for which figures of a minute are kept.")
    hour_days: float = Field(default=366.0, gt=0, description="Days for which figures of an hour are kept.")
    command_days: float = Field(
        default=90.0, ge=15, description="Days for which commands that have ended are kept, with their logs."
    )
    webhook_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts of webhooks for alerts that may lie at private addresses, as `chat.local`; as `http://chat.local` "
        "also without TLS.",
    )
    webhook_secret_file: ExpandedPath | None = Field(
        default=None, description="File that holds the secret with which they are signed; unset sends them unsigned."
    )
    smtp_url: str | None = Field(
        default=None,
        pattern=r"^smtps?://[^\s/?#]+$",
        description="Mail server for alerts, as `smtps://user@host:465`; unset: no mail.",
    )
    smtp_password_file: ExpandedPath | None = Field(
        default=None, description="File that holds its password and nothing else."
    )
    mail_from: str | None = Field(default=None, description="Sender of alerts by mail.")
    oidc_issuer: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#@]+$",
        description="OpenID Connect provider for people's logins; unset: passwords only.",
    )
    oidc_client_id: str | None = Field(default=None, description="This service's name there.")
    oidc_secret_file: ExpandedPath | None = Field(
        default=None, description="File that holds its secret and nothing else."
    )
    login_tries: PositiveInt = Field(default=10, description="Wrong passwords of a user or an address in 15 minutes.")
