"""Loads the settings from the fleet, file, environment and flags, in that order, and keeps the origin of each value.

Later sources win, key by key. An unknown key is an error in every source: a typing mistake must not silently leave a
default in force.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from edgewise.core.errors import ConfigError
from edgewise.core.log import get_logger
from edgewise.core.settings_overlay import ORIGIN, read_overlay
from edgewise.core.settings_schema import DEFAULT_CONFIG_FILE, Settings
from edgewise.core.toml import parse_toml

__all__ = [
    "DEFAULT_CONFIG_FILE",
    "LoadedSettings",
    "Settings",
    "env_name",
    "load_settings",
    "settings_fields",
    "with_fleet",
]

log = get_logger(__name__)

ENV_PREFIX = "EDGEWISE_"
# Variables with our prefix that are no settings: where the file is, and what commands call.
RESERVED_ENV = frozenset(
    {"EDGEWISE_CONFIG", "EDGEWISE_URL", "EDGEWISE_API_KEY", "EDGEWISE_FLEET_URL", "EDGEWISE_FLEET_TOKEN"}
)
_SHARED = re.compile(rf"({ENV_PREFIX})?(.*(__|\.))?", re.DOTALL)
TEST_ENV_PREFIX = "EDGEWISE_TEST_"  # read by the test suite, whose child processes inherit it


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the origin of each value.

    Attributes:
        settings: The validated values.
        origins: Dotted key -> "default", "fleet", the path of the file, the name of the environment variable, or "flag".
        file: The configuration file that was read, if any.
        given: What file, environment and flags say: dotted key -> (value, origin).
        fleet_fault: Why the values that the fleet has set are not in force; None if they are, or there are none.
    """

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None = None
    given: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict, repr=False)
    fleet_fault: str | None = None

    def rows(self) -> list[tuple[str, Any, str]]:
        """(dotted key, JSON value, origin) of every setting; secret types show asterisks, as pydantic writes them."""
        values = dict(_flatten(self.settings.model_dump(mode="json"), settings_fields()))
        return [(key, value, self.origins[key]) for key, value in values.items()]


def load_settings(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    default_file: Path = DEFAULT_CONFIG_FILE,
) -> LoadedSettings:
    """Merge defaults, what the fleet set, file, environment and flags; later ones win.

    Values of the fleet that are refused keep nothing from starting: they are left out, and `fleet_fault` says so.

    Args:
        config: `--config`; without it `$EDGEWISE_CONFIG`, else `default_file` if that exists.
        overrides: Flags by dotted key, e.g. {"port": 8401, "engine.threads": 2}; None means "not given".
        environ: Default: the process environment.

    Raises:
        ConfigError: A file cannot be read, a key is unknown or a value refused; key and source are named.
    """
    env = os.environ if environ is None else environ
    file = _config_file(config, env, default_file)
    fields = settings_fields()
    flags = {key: value for key, value in (overrides or {}).items() if value is not None}
    given = {**_from_file(file, fields), **_from_environ(env, fields), **_from_flags(flags, fields)}
    local = _merged({}, given, file)
    try:
        return with_fleet(local, read_overlay(local.settings.home).values)
    except ConfigError as error:
        log.warning("fleet_settings_left_out", reason=error.message)
        return replace(local, fleet_fault=error.message)


def with_fleet(loaded: LoadedSettings, values: Mapping[str, Any]) -> LoadedSettings:
    """The same with other values of a fleet, by dotted keys.

    Raises:
        ConfigError: A key is unknown, or a value refused; both are named.
    """
    fields = settings_fields()
    for key in values:
        if key not in fields:
            raise ConfigError(f"fleet: unknown key `{key}`{_suggestion(key, fields)}", param=key)
    layer = {key: (_checked_type(key, value, fields, ORIGIN), ORIGIN) for key, value in values.items()}
    return _merged(layer, loaded.given, loaded.file)


def _merged(
    fleet: Mapping[str, tuple[Any, str]], given: Mapping[str, tuple[Any, str]], file: Path | None
) -> LoadedSettings:
    layer = {**fleet, **given}
    origins = dict.fromkeys(settings_fields(), "default") | {key: origin for key, (_, origin) in layer.items()}
    return LoadedSettings(_validate({key: value for key, (value, _) in layer.items()}, origins), origins, file, given)


def settings_fields() -> dict[str, FieldInfo]:
    """Every setting by its dotted key, in the order of documentation."""
    return dict(_walk(Settings, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _config_file(config: Path | None, env: Mapping[str, str], default_file: Path) -> Path | None:
    if config is not None:
        return config
    if named := env.get("EDGEWISE_CONFIG"):
        return Path(named)
    return default_file if default_file.exists() else None


def _from_file(file: Path | None, fields: Mapping[str, FieldInfo]) -> dict[str, tuple[Any, str]]:
    if file is None:
        return {}
    try:
        table = parse_toml(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    return {
        key: (_checked_type(key, value, fields, file), str(file)) for key, value in _file_items(table, fields, file)
    }


def _file_items(table: dict[str, Any], fields: Mapping[str, FieldInfo], file: Path) -> Iterator[tuple[str, Any]]:
    sections = {key.rpartition(".")[0] for key in fields}
    for key, value in _flatten(table, fields):
        if key in sections:
            if value != {}:
                raise ConfigError(f"{file}: `{key}` is a section; write its keys under [{key}]")
        elif key not in fields:
            raise ConfigError(f"{file}: unknown key `{key}`{_suggestion(key, fields)}")
        else:
            yield key, value


def _flatten(table: Mapping[str, Any], fields: Mapping[str, FieldInfo], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and key not in fields:
            yield from _flatten(value, fields, f"{key}.")
        else:
            yield key, value


def _checked_type(key: str, value: Any, fields: Mapping[str, FieldInfo], file: Path | str) -> Any:
    """TOML has types: `port = true` is a mistake, although pydantic would read it as 1."""
    if isinstance(value, bool) and fields[key].annotation is not bool:
        raise ConfigError(f"{file}: `{key}` cannot be {str(value).lower()}: it is no switch")
    return value


def _from_environ(env: Mapping[str, str], fields: Mapping[str, FieldInfo]) -> dict[str, tuple[Any, str]]:
    layer: dict[str, tuple[Any, str]] = {}
    known = {env_name(key): key for key in fields}
    for name, text in env.items():
        if not name.startswith(ENV_PREFIX) or name.startswith(TEST_ENV_PREFIX) or name in RESERVED_ENV:
            continue
        if name not in known:
            raise ConfigError(f"environment: unknown variable {name}{_suggestion(name, known)}")
        if text != "":  # an empty variable means "not set", as in an environment file
            layer[known[name]] = (_parse_env(text, fields[known[name]], name), name)
    return layer


def env_name(key: str) -> str:
    """The environment variable of a dotted key: `engine.max_context` -> `EDGEWISE_ENGINE__MAX_CONTEXT`."""
    return ENV_PREFIX + key.replace(".", "__").upper()


def _parse_env(text: str, field: FieldInfo, name: str) -> Any:
    """Lists are comma-separated or a JSON array; everything else is left to pydantic."""
    if get_origin(field.annotation) is not tuple:
        return text
    if not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"environment: {name} is no JSON array: {error}") from error


def _from_flags(flags: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> dict[str, tuple[Any, str]]:
    for key in flags:
        if key not in fields:
            raise ConfigError(f"flags: unknown key `{key}`{_suggestion(key, fields)}")
    return {key: (value, "flag") for key, value in flags.items()}


def _suggestion(key: str, known: Mapping[str, Any]) -> str:
    """The known name that was meant, if they differ by a slip; the section or prefix that both have proves nothing."""
    prefix = _SHARED.match(key)
    shared = prefix[0] if prefix and any(name.startswith(prefix[0]) for name in known) else ""
    names = {name.removeprefix(shared): name for name in known}
    close = [names[name] for name in difflib.get_close_matches(key.removeprefix(shared), names, n=1)]
    return f"; did you mean `{close[0]}`?" if close else "; `edgewise config show` lists the known ones"


def _validate(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    try:
        return Settings.model_validate(nested)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(item, origins) for item in error.errors(include_url=False))) from error


def _explain(item: Any, origins: Mapping[str, str]) -> str:
    """One refused value: `port: Input should be less than or equal to 65535 (value '70000' from EDGEWISE_PORT)`."""
    key = ".".join(str(part) for part in item["loc"])
    known = next((candidate for candidate in origins if key == candidate or key.startswith(f"{candidate}.")), None)
    message = str(item["msg"]).removeprefix("Value error, ")
    if known is None:
        sources = sorted(
            {origin for name, origin in origins.items() if name.startswith(f"{key}.") and origin != "default"}
        )
        return f"{message} (from {', '.join(sources)})"
    return f"`{known}`: {message} (value {item['input']!r} from {origins[known]})"
