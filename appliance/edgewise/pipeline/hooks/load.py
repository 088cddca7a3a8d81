"""Find the hooks that are enabled by name: those that come with Edgewise, and plug-ins of the group `edgewise.hooks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from edgewise.core.errors import ConfigError
from edgewise.pipeline.hooks.audit_log import AuditLog
from edgewise.pipeline.hooks.protocol import Hook, HookSetup
from edgewise.pipeline.hooks.word_filter import WordFilter

GROUP = "edgewise.hooks"
OURS: Mapping[str, type[Hook]] = {hook.name: hook for hook in (AuditLog, WordFilter)}


def load_hooks(enabled: Sequence[str], options: Iterable[str], home: Path) -> list[Hook]:
    """The hooks in the order in which they are named, which is the order in which they are asked.

    Args:
        options: Entries `NAME.option=value`.

    Raises:
        ConfigError: An unknown name, a plug-in that cannot be loaded, an option of a hook that is not enabled, or what the
            hook itself refuses.
    """
    by_hook = _options(options, enabled)
    return [_load(name)(HookSetup(home=home, options=by_hook.get(name, {}))) for name in dict.fromkeys(enabled)]


def _options(entries: Iterable[str], enabled: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        path, separator, value = entry.partition("=")
        name, dot, option = path.strip().partition(".")
        if not (separator and dot and name and option):
            raise ConfigError(f"hooks.options: {entry[:80]!r} is not of the form NAME.option=value.")
        if name not in enabled:
            raise ConfigError(f"hooks.options: '{name}' is not in hooks.enabled.")
        found.setdefault(name, {})[option] = value.strip()
    return found


def _load(name: str) -> type[Hook]:
    if name in OURS:
        return OURS[name]
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({*OURS, *found}))
        raise ConfigError(f"hooks.enabled: there is no hook '{name}'. Known: {known}.")
    try:
        hook = found[name].load()
    except Exception as error:  # a plug-in's import may raise anything
        raise ConfigError(f"hooks.enabled: the hook '{name}' cannot be loaded: {error}") from error
    if not (isinstance(hook, type) and issubclass(hook, Hook)):
        raise ConfigError(f"hooks.enabled: '{name}' is no class below {Hook.__module__}.{Hook.__name__}.")
    return hook
