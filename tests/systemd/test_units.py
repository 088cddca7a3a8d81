from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.install_plan import (
    BROKER_UNITS,
    CLOUD_UNIT,
    FLEET_HOME,
    FLEET_UNIT,
    STOP_MARGIN_S,
    UNIT,
    render_cloud_unit,
    render_fleet_units,
    render_unit,
    service_toml,
    template,
)
from edgewise.cloud.fleet.enrolment.authority import CRL_FILE, Authority
from edgewise.cloud.fleet.enrolment.authority import FOLDER as CA_FOLDER
from edgewise.cloud.fleet.enrolment.broker_config import ACL_FILE, CERTIFICATE_FILE, write_broker_config
from edgewise.cloud.fleet.enrolment.broker_config import FOLDER as BROKER_FOLDER
from edgewise.core.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[2]
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


def directives(text: str) -> dict[str, list[str]]:
    """Every assignment of a unit file, in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(params=[UNIT, CLOUD_UNIT])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with a command that exists here."""
    path: Path = tmp_path / request.param
    render = render_unit if request.param == UNIT else render_cloud_unit
    path.write_text(render(Path("/bin/true")))
    return path


@needs_analyze
def test_verify_is_clean(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_verify_would_find_a_mistake(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=gently"))
    assert "gently" in analyze("verify", str(unit)).stderr


@needs_analyze
def test_verify_of_the_user_unit_is_clean(tmp_path: Path) -> None:
    path = tmp_path / UNIT
    path.write_text(render_unit(Path("/bin/true"), user=True))
    done = analyze("verify", "--user", str(path), XDG_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


@needs_analyze
@pytest.mark.parametrize("name", [UNIT, CLOUD_UNIT])
def test_exposure_is_below_three(name: str) -> None:
    done = analyze("security", "--offline=true", str(ROOT / "systemd" / name))
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) < 3.0


@pytest.fixture
def fleet_units(tmp_path: Path) -> Path:
    """Units of a fleet service and its broker in one folder, with commands that exist here."""
    for name, text in render_fleet_units(Path("/bin/true")).items():
        text = text.replace("/usr/sbin/mosquitto", "/bin/true").replace("/bin/systemctl", "/bin/true")
        (tmp_path / name).write_text(text)
    return tmp_path


@needs_analyze
def test_verify_of_the_fleets_units_is_clean(fleet_units: Path) -> None:
    names = [str(fleet_units / name) for name in (FLEET_UNIT, *BROKER_UNITS)]
    done = analyze("verify", *names, SYSTEMD_UNIT_PATH=f"{fleet_units}:")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
@pytest.mark.parametrize("name", [FLEET_UNIT, BROKER_UNITS[0]])
def test_exposure_of_the_fleets_units_is_below_two(name: str) -> None:
    done = analyze("security", "--offline=true", str(ROOT / "systemd" / name))
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) < 2.0


def test_the_fleets_units_and_the_program_agree(tmp_path: Path) -> None:
    """The broker's unit starts what `broker-config` writes in the fleet service's state directory, and watches its lists."""
    units = {name: directives(text) for name, text in render_fleet_units(Path("/opt/edgewise")).items()}
    fleet, broker = units[FLEET_UNIT], units[BROKER_UNITS[0]]
    home = Path("/var/lib") / fleet["StateDirectory"][0]
    assert home == Path(FLEET_HOME)
    assert fleet["ExecStart"] == ["/opt/edgewise fleet serve"]
    assert fleet["RestartPreventExitStatus"] == [f"{ExitCode.USAGE} {ExitCode.CONFIG}"]
    assert broker["User"] == fleet["User"]
    written = write_broker_config(tmp_path / BROKER_FOLDER, Authority(tmp_path / CA_FOLDER), ["a.example"])
    conf = home / written.conf.relative_to(tmp_path)
    assert broker["ExecStart"] == [f"/usr/sbin/mosquitto -c {conf}"]
    assert broker["ConditionPathExists"] == [str(conf)]
    watched = [
        tmp_path / CA_FOLDER / CRL_FILE,
        *(tmp_path / BROKER_FOLDER / name for name in (ACL_FILE, CERTIFICATE_FILE)),
    ]
    assert all(path.exists() for path in watched)
    assert units[BROKER_UNITS[1]]["PathChanged"] == [str(home / path.relative_to(tmp_path)) for path in watched]


def test_the_unit_and_the_program_agree() -> None:
    unit = directives(render_unit(Path("/bin/true"), drain_s=Settings().drain_s))
    assert unit["Type"] == ["notify"]
    assert unit["TimeoutStopSec"] == [f"{Settings().drain_s + STOP_MARGIN_S:g}"]
    assert unit["RestartPreventExitStatus"] == [f"{ExitCode.USAGE} {ExitCode.CONFIG}"]
    assert unit["KillMode"] == ["mixed"]
    assert unit["StateDirectory"] == ["edgewise"]
    assert unit["CacheDirectory"] == ["edgewise"]
    assert "TRITON_CACHE_DIR=%C/edgewise/triton" in unit["Environment"]
    assert load_settings(ROOT / "systemd/edgewise.toml", environ={}).settings.home == Path("/var/lib/edgewise")


def test_device_and_cloud_differ_in_folders_alone() -> None:
    device, cloud = (directives(render(Path("/opt/edgewise"))) for render in (render_unit, render_cloud_unit))
    differing = {name for name in device if device[name] != cloud[name]}
    folders = {"StateDirectory", "CacheDirectory", "RuntimeDirectory"}
    assert differing == folders | {"Description", "ExecStart", "Environment", "EnvironmentFile"}
    assert {name: cloud[name] for name in folders} == {name: ["edgewise-cloud"] for name in folders}
    assert cloud["ExecStart"] == ["/opt/edgewise cloud"]
    assert "EDGEWISE_HOME=%S/edgewise-cloud" in cloud["Environment"]


def test_system_and_user_unit_behave_alike() -> None:
    system, user = (directives(render_unit(Path("/bin/true"), user=user)) for user in (False, True))
    for name in (
        "Type",
        "WatchdogSec",
        "Restart",
        "RestartPreventExitStatus",
        "TimeoutStopSec",
        "KillMode",
        "OOMPolicy",
    ):
        assert system[name] == user[name]


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_sysusers_makes_the_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    config = tmp_path / "edgewise.conf"
    config.write_text(template("sysusers.conf"))
    command = ["systemd-sysusers", f"--root={tmp_path}", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    passwd = (tmp_path / "etc/passwd").read_text()
    assert re.search(r"^edgewise:x:\d+:\d+:Edgewise device service:/var/lib/edgewise:\S*nologin$", passwd, re.MULTILINE)
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^video:.*edgewise$", groups, re.MULTILINE)
    assert re.search(r"^render:.*edgewise$", groups, re.MULTILINE)


def test_every_template_ships_with_the_package() -> None:
    for name in (UNIT, "edgewise-device.user.service", "sysusers.conf", "tmpfiles.conf"):
        assert template(name)
    assert service_toml()


CONFINED = """
import ctypes, json, os, sys
library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
library.seccomp_init.restype = ctypes.c_void_p
context = ctypes.c_void_p(library.seccomp_init(0x00050000 | 1))  # SCMP_ACT_ERRNO(EPERM)
for name in json.loads(sys.argv[1]):
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        assert library.seccomp_rule_add(context, 0x7FFF0000, number, 0) == 0
assert library.seccomp_load(context) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def has_seccomp() -> bool:
    return sys.platform == "linux" and ctypes.util.find_library("seccomp") is not None


def allowed_system_calls() -> list[str]:
    """What the unit's SystemCallFilter lines leave, resolved by systemd itself."""
    allowed: set[str] = set()
    for line in directives(render_unit(Path("/bin/true")))["SystemCallFilter"]:
        for group in line.lstrip("~").split():
            calls = members(group)
            allowed = allowed - calls if line.startswith("~") else allowed | calls
    return sorted(allowed)


def members(group: str) -> set[str]:
    if not group.startswith("@"):
        return {group}
    lines = analyze("syscall-filter", group).stdout.splitlines()[1:]
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return set().union(*(members(name) for name in names))


@needs_analyze
@pytest.mark.skipif(not has_seccomp(), reason="libseccomp is not installed")
def test_torch_computes_under_the_units_system_call_filter() -> None:
    calls = json.dumps(allowed_system_calls())
    good = [sys.executable, "-c", CONFINED, calls, "-m", "edgewise.cli.torch_probe"]
    done = subprocess.run(good, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cpu"]["ok"]
    bad = [sys.executable, "-c", CONFINED, calls, "-c", "import os; os.chroot('/')"]
    done = subprocess.run(bad, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in done.stderr
