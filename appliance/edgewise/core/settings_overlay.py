"""Settings that a fleet sets: a file of the state directory, below what is set at the device itself.

The file holds the newest values on trial, and the last ones with which the service answered. A service that did not come up with
values on trial goes back to those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from edgewise.core.errors import ConfigError, InvalidRequest
from edgewise.core.files import atomic_write

NAME = "fleet-settings.json"
"""Of the file in the state directory."""
ORIGIN = "fleet"
"""Where `edgewise config show` says that a value comes from."""
LOCAL_ONLY = ("home", "host", "port", "mqtt", "tls", "security", "hooks", "fleet", "agent.enabled", "cloud.key")
"""Settings, or whole sections, that only the device itself sets: who may reach it and whom it trusts, and what could cut it off
from those who would have to mend it."""


class Values(BaseModel):
    """Dotted settings of one generation of the desired configuration."""

    model_config = ConfigDict(frozen=True)

    gen: NonNegativeInt = 0
    values: dict[str, Any] = {}


class Overlay(BaseModel):
    """Attributes:
    trial: Values with which the service has not answered yet; None if there are none.
    tries: Starts with them.
    good: Those that it answered with last.
    failed: Generation that was given up, and why.
    """

    model_config = ConfigDict(frozen=True)

    trial: Values | None = None
    tries: NonNegativeInt = 0
    good: Values = Values()
    failed: NonNegativeInt = 0
    why: str = ""

    @property
    def values(self) -> Mapping[str, Any]:
        """Those in force at the next start."""
        return (self.trial or self.good).values

    def given_up(self, why: str) -> Overlay:
        """Back to what was good."""
        gen = 0 if self.trial is None else self.trial.gen
        return Overlay(good=self.good, failed=gen, why=why)

    def proven(self) -> Overlay:
        """The service has answered with what was on trial."""
        return Overlay(good=self.trial or self.good)


def read_overlay(home: Path) -> Overlay:
    """An empty one where there is no file.

    Raises:
        ConfigError: It cannot be read, or is damaged.
    """
    path = home / NAME
    try:
        return Overlay.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Overlay()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: is damaged; remove it, and the fleet sets its values again") from error


def write_overlay(home: Path, overlay: Overlay) -> None:
    """Atomically, and on disk when this returns. Raises `StorageError`."""
    atomic_write(home / NAME, json.dumps(overlay.model_dump(), indent=2) + "\n", mode=0o600)


def check_keys(values: Mapping[str, Any]) -> None:
    """Refuse settings that a fleet may not set; raises `InvalidRequest`, naming the first."""
    for key in values:
        if any(key == local or key.startswith(f"{local}.") for local in LOCAL_ONLY):
            raise InvalidRequest(f"`{key}` can be set at the device only.", param=key)
