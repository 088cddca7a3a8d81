"""What `edgewise install` writes and runs, decided before anything is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from edgewise.core.errors import ConfigError, EdgewiseError
from edgewise.core.files import atomic_write, translate_os_errors
from edgewise.core.settings_reference import example_toml

UNIT = "edgewise-device.service"
CLOUD_UNIT = "edgewise-cloud.service"
SERVICE_HOME = "/var/lib/edgewise"
CLOUD_HOME = "/var/lib/edgewise-cloud"
FLEET_UNIT = "edgewise-fleet.service"
FLEET_HOME = "/var/lib/edgewise-fleet"
BROKER_UNITS = ("edgewise-broker.service", "edgewise-broker-reload.path", "edgewise-broker-reload.service")
DEFAULT_EXEC = Path("/opt/edgewise/bin/edgewise")
# After the drain the service ends its engine and closes its listeners; this many seconds are kept for that.
STOP_MARGIN_S = 15
# ProtectHome=yes hides these from the service.
_HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to be written; `keep` leaves an existing one alone, because a person may have edited it."""

    path: Path
    content: str
    mode: int = 0o644
    keep: bool = False

    @property
    def action(self) -> str:
        if not self.path.exists():
            return "create"
        if self.keep:
            return "keep"
        return "unchanged" if self.path.read_text("utf-8") == self.content else "replace"


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """Files, commands and advice, in order.

    Attributes:
        problems: What would keep the service from starting; a real installation refuses them.
        next_steps: What the person does afterwards.
    """

    files: tuple[PlannedFile, ...]
    commands: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...]
    next_steps: tuple[str, ...]


def this_command() -> Path:
    """The `edgewise` script beside the running interpreter."""
    return Path(sys.executable).parent / "edgewise"


def render_unit(executable: Path, *, drain_s: float = 20.0, user: bool = False) -> str:
    """The device's unit file for an `edgewise` executable; TimeoutStopSec leaves room for the drain."""
    words = {
        "TITLE": "Edgewise device service",
        "ORIGIN": "Written by `edgewise install`",
        "NAME": UNIT.removesuffix(".service"),
        "COMMAND": "serve",
        "FOLDER": "edgewise",
    }
    return _render("edgewise-device.user.service" if user else UNIT, executable, drain_s, words)


def render_cloud_unit(executable: Path, *, drain_s: float = 20.0) -> str:
    """The same for a cloud engine, which has folders of its own: it may stand beside a device service."""
    words = {
        "TITLE": "Edgewise cloud engine",
        "ORIGIN": "See docs/cloud.md",
        "NAME": CLOUD_UNIT.removesuffix(".service"),
        "COMMAND": "cloud",
        "FOLDER": "edgewise-cloud",
    }
    return _render(UNIT, executable, drain_s, words)


def render_fleet_units(executable: Path) -> dict[str, str]:
    """Units of a fleet service, its broker, and what tells the broker that its lists have changed, by name."""
    words = {"@EXEC@": _unit_word(executable), "@STATE@": FLEET_HOME}
    units = {}
    for name in (FLEET_UNIT, *BROKER_UNITS):
        text = template(name)
        for placeholder, value in words.items():
            text = text.replace(placeholder, value)
        units[name] = text
    return units


def _render(name: str, executable: Path, drain_s: float, words: Mapping[str, str]) -> str:
    values = {f"@{word}@": value for word, value in words.items()} | {
        "@EXEC@": _unit_word(executable),
        "@DRAIN_S@": f"{drain_s:g}",
        "@STOP_S@": f"{drain_s + STOP_MARGIN_S:g}",
    }
    text = template(name)
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def template(name: str) -> str:
    return (files("edgewise.cli") / "templates" / name).read_text("utf-8")


def plan_system(
    executable: Path, *, drain_s: float = 20.0, prefix: Path | None = None, start: bool = False, cloud: bool = False
) -> InstallPlan:
    """An installation for the whole machine.

    Args:
        executable: The `edgewise` that the unit starts.
        prefix: Write below this folder instead, for an image that is being built; nothing is run then.
        start: Start the service at once.
        cloud: The cloud engine instead of the device service; a machine may have both.
    """
    root = prefix or Path("/")
    unit, home = (CLOUD_UNIT, CLOUD_HOME) if cloud else (UNIT, SERVICE_HOME)
    folders = f"etc/tmpfiles.d/{Path(home).name}.conf"
    render = render_cloud_unit if cloud else render_unit
    planned = (
        PlannedFile(root / "etc/systemd/system" / unit, render(executable, drain_s=drain_s)),
        PlannedFile(root / "etc/sysusers.d/edgewise.conf", template("sysusers.conf")),
        PlannedFile(root / folders, tmpfiles(cloud=cloud)),
        PlannedFile(root / "etc/edgewise/edgewise.toml", service_toml(home), keep=True),
    )
    commands = (
        ("systemd-sysusers", "/etc/sysusers.d/edgewise.conf"),
        ("systemd-tmpfiles", "--create", f"/{folders}"),
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", *(["--now"] if start else []), unit),
    )
    # The configuration may be one that both services share: what is run by hand names the state directory itself.
    command = f"sudo -u edgewise EDGEWISE_HOME={home} {executable}" if cloud else f"sudo -u edgewise {executable}"
    steps = (
        f"{command} models pull starter",
        *([f"{command} cloud keys new NAME   # for each device or tenant"] if cloud else []),
        f"sudo systemctl start {unit}",
        f"{command} doctor" if cloud else f"{executable} doctor",
    )
    return InstallPlan(planned, () if prefix else commands, tuple(_system_problems(executable)), steps)


def plan_fleet(executable: Path, *, prefix: Path | None = None, start: bool = False) -> InstallPlan:
    """An installation of the fleet service and the units of its broker, which starts once it has been configured.

    Args: as `plan_system`.
    """
    root = prefix or Path("/")
    folders = "etc/tmpfiles.d/edgewise-fleet.conf"
    units = render_fleet_units(executable)
    planned = (
        *(PlannedFile(root / "etc/systemd/system" / name, text) for name, text in units.items()),
        PlannedFile(root / "etc/sysusers.d/edgewise.conf", template("sysusers.conf")),
        PlannedFile(root / folders, template("tmpfiles.conf").replace(SERVICE_HOME, FLEET_HOME)),
    )
    commands = (
        ("systemd-sysusers", "/etc/sysusers.d/edgewise.conf"),
        ("systemd-tmpfiles", "--create", f"/{folders}"),
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", *(["--now"] if start else []), FLEET_UNIT),
    )
    command = f"sudo -u edgewise EDGEWISE_HOME={FLEET_HOME} {executable} fleet"
    steps = (
        f"{command} users add NAME --role admin --local",
        f"sudo systemctl start {FLEET_UNIT}",
        f"{command} broker-config --host BROKER   # for devices elsewhere: docs/enrolment.md",
        f"sudo systemctl enable --now {BROKER_UNITS[0]} {BROKER_UNITS[1]}",
    )
    return InstallPlan(planned, () if prefix else commands, tuple(_system_problems(executable)), steps)


def plan_user(executable: Path, *, drain_s: float = 20.0, start: bool = False) -> InstallPlan:
    """An installation for the calling user, without root and with less protection."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    planned = (
        PlannedFile(config / "systemd/user" / UNIT, render_unit(executable, drain_s=drain_s, user=True)),
        PlannedFile(config / "edgewise/edgewise.toml", example_toml(), keep=True),
    )
    commands = (
        ("systemctl", "--user", "daemon-reload"),
        ("systemctl", "--user", "enable", *(["--now"] if start else []), UNIT),
    )
    steps = (
        f"{executable} models pull starter",
        f"systemctl --user start {UNIT}",
        "loginctl enable-linger   # keeps it running when you log out",
    )
    return InstallPlan(planned, commands, tuple(_missing(executable)), steps)


def service_toml(home: str = SERVICE_HOME) -> str:
    """The configuration of an installed service: `home` is set, so that `edgewise keys` finds the service's keys too."""
    return example_toml({"home": home})


def tmpfiles(*, cloud: bool = False) -> str:
    """Folders that exist before the first start."""
    text = template("tmpfiles.conf")
    return text.replace(SERVICE_HOME, CLOUD_HOME).replace("device service", "cloud engine") if cloud else text


def carry_out(plan: InstallPlan) -> None:
    """Write the files and run the commands.

    Raises:
        ConfigError: The plan has problems.
        StorageError: A file cannot be written.
        InstallError: A command failed; the files stay, and a repeated installation goes on from there.
    """
    if plan.problems:
        raise ConfigError("; ".join(plan.problems))
    for file in plan.files:
        if file.action in ("create", "replace"):
            atomic_write(file.path, file.content, mode=file.mode)
    for command in plan.commands:
        _run(command)


class InstallError(EdgewiseError):
    """One of the installation's commands failed."""

    code = "install_failed"


def _run(command: tuple[str, ...]) -> None:
    line = " ".join(command)
    try:
        with translate_os_errors("run", Path(command[0])):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InstallError(
            f"`{command[0]}` is not here: this machine has no systemd; use --prefix for an image"
        ) from error
    if done.returncode != 0:
        raise InstallError(f"`{line}` failed ({done.returncode}): {done.stderr.strip() or done.stdout.strip()}")


def _system_problems(executable: Path) -> Iterator[str]:
    yield from _missing(executable)
    interpreter = Path(sys.executable).resolve() if executable == this_command() else executable
    for path in {executable, interpreter}:
        if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
            yield (
                f"{path} lies where the service cannot look (ProtectHome); install Edgewise under /opt "
                "(`python3 -m venv /opt/edgewise`), with an interpreter that is not in a home directory"
            )


def _missing(executable: Path) -> Iterator[str]:
    if not os.access(executable, os.X_OK):
        yield f"{executable} is not an executable file; name one with --exec"


def _unit_word(path: Path) -> str:
    """A path as one word of a unit file (systemd.syntax(7)): `%` begins a specifier, space and quotes need escaping."""
    text = str(path).replace("%", "%%")
    if not any(ch in text for ch in " \t\"'\\;$"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
