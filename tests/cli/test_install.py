from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from edgewise.cli import install_plan
from edgewise.cli.install_plan import InstallError, InstallPlan, PlannedFile, carry_out, plan_system, render_unit
from edgewise.cli.main import main
from edgewise.core.errors import ConfigError
from edgewise.core.settings import load_settings

TRUE = Path("/bin/true")


def install(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["install", "--exec", str(TRUE), *args])
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_dry_run_prints_everything_and_touches_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, err = install(capsys, "--dry-run", "--prefix", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    for file in plan_system(TRUE, prefix=tmp_path).files:
        assert f"# create {file.path} (mode 0644)\n{file.content}" in out
    assert "models pull starter" in err


def test_dry_run_for_the_machine_names_paths_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(install(capsys, "--dry-run", "--now", "--json")[0])
    assert [file["path"] for file in plan["files"]] == [
        "/etc/systemd/system/edgewise-device.service",
        "/etc/sysusers.d/edgewise.conf",
        "/etc/tmpfiles.d/edgewise.conf",
        "/etc/edgewise/edgewise.toml",
    ]
    assert plan["dry_run"] is True
    assert plan["commands"][-1] == ["systemctl", "enable", "--now", "edgewise-device.service"]


def test_the_cloud_engine_has_unit_folders_and_steps_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = json.loads(install(capsys, "--cloud", "--dry-run", "--now", "--json")[0])
    assert [file["path"] for file in plan["files"]] == [
        "/etc/systemd/system/edgewise-cloud.service",
        "/etc/sysusers.d/edgewise.conf",
        "/etc/tmpfiles.d/edgewise-cloud.conf",
        "/etc/edgewise/edgewise.toml",
    ]
    assert ["systemd-tmpfiles", "--create", "/etc/tmpfiles.d/edgewise-cloud.conf"] in plan["commands"]
    assert plan["commands"][-1] == ["systemctl", "enable", "--now", "edgewise-cloud.service"]
    assert any("EDGEWISE_HOME=/var/lib/edgewise-cloud" in step and "keys new" in step for step in plan["next_steps"])

    install(capsys, "--cloud", "--prefix", str(tmp_path))
    unit = (tmp_path / "etc/systemd/system/edgewise-cloud.service").read_text()
    assert "\nExecStart=/bin/true cloud\n" in unit
    assert (
        "\nd /var/lib/edgewise-cloud 0750 edgewise edgewise -\n"
        in (tmp_path / "etc/tmpfiles.d/edgewise-cloud.conf").read_text()
    )
    toml = load_settings(tmp_path / "etc/edgewise/edgewise.toml", environ={}).settings
    assert toml.home == Path("/var/lib/edgewise-cloud")
    install(capsys, "--prefix", str(tmp_path))  # the device service beside it
    assert (tmp_path / "etc/systemd/system/edgewise-device.service").exists()
    assert unit == (tmp_path / "etc/systemd/system/edgewise-cloud.service").read_text()
    assert "--user installs a device" in install(capsys, "--cloud", "--user", code=2)[1]


def test_prefix_writes_exactly_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, _ = install(capsys, "--prefix", str(tmp_path))
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    plan = plan_system(TRUE, prefix=tmp_path)
    assert plan.commands == ()
    assert written == {file.path for file in plan.files}
    assert all(file.path.read_text() == file.content for file in plan.files)
    assert "run:" not in out


def test_a_second_installation_keeps_an_edited_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install(capsys, "--prefix", str(tmp_path))
    toml = tmp_path / "etc/edgewise/edgewise.toml"
    unit = tmp_path / "etc/systemd/system/edgewise-device.service"
    toml.write_text("port = 9000")
    unit.write_text("old")
    install(capsys, "--prefix", str(tmp_path))
    assert toml.read_text() == "port = 9000"
    assert unit.read_text() == render_unit(TRUE)
    assert [file.action for file in plan_system(TRUE, prefix=tmp_path).files] == ["unchanged"] * 3 + ["keep"]


def test_the_time_to_stop_follows_the_drain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_DRAIN_S", "50")
    install(capsys, "--prefix", str(tmp_path))
    unit = (tmp_path / "etc/systemd/system/edgewise-device.service").read_text()
    assert "\nTimeoutStopSec=65\n" in unit
    assert "drain_s (50 s)" in unit


def test_user_installation(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(install_plan, "_run", lambda command: ran.append(command))
    ran: list[tuple[str, ...]] = []
    install(capsys, "--user")
    assert (tmp_path / "systemd/user/edgewise-device.service").read_text() == render_unit(TRUE, user=True)
    assert load_settings(tmp_path / "edgewise/edgewise.toml", environ={}).settings.port == 8400
    assert [command[:2] for command in ran] == [("systemctl", "--user")] * 2


def test_user_and_prefix_exclude_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--prefix" in install(capsys, "--user", "--prefix", str(tmp_path), code=2)[1]


def test_root_is_needed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root: use sudo, or --user" in install(capsys, code=1)[1]


@pytest.mark.parametrize("path", ["/home/me/venv/bin/edgewise", "/root/edgewise"])
def test_a_command_that_the_service_could_not_see(path: str) -> None:
    problems = plan_system(Path(path)).problems
    assert any("ProtectHome" in problem for problem in problems)


def test_an_interpreter_that_the_service_could_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/root/python/bin/python3")
    problems = plan_system(Path("/root/python/bin/edgewise")).problems
    assert any("/root/python/bin/python3" in problem for problem in problems)


def test_a_plan_with_problems_is_refused(tmp_path: Path) -> None:
    plan = plan_system(tmp_path / "missing", prefix=tmp_path / "image")
    with pytest.raises(ConfigError, match="not an executable file; name one with --exec"):
        carry_out(plan)
    assert list(tmp_path.iterdir()) == []


def plan_with(*command: str) -> InstallPlan:
    return InstallPlan(files=(), commands=(command,), problems=(), next_steps=())


def test_a_failing_command_is_named() -> None:
    carry_out(plan_with("true"))
    with pytest.raises(InstallError, match=r"`sh -c echo no >&2; exit 3` failed \(3\): no"):
        carry_out(plan_with("sh", "-c", "echo no >&2; exit 3"))


def test_a_machine_without_systemd_is_told() -> None:
    with pytest.raises(InstallError, match="no systemd; use --prefix"):
        carry_out(plan_with("no-such-command-here"))


@pytest.mark.parametrize(
    ("path", "word"),
    [("/a b/edgewise", '"/a b/edgewise"'), ("/50%/e", "/50%%/e"), ('/a"b/$e', '"/a\\"b/$$e"'), ("/opt/e", "/opt/e")],
)
def test_paths_in_the_unit(path: str, word: str) -> None:
    assert f"\nExecStart={word} serve\n" in render_unit(Path(path))


def test_actions(tmp_path: Path) -> None:
    file = PlannedFile(tmp_path / "f", "new")
    assert file.action == "create"
    file.path.write_text("old")
    assert file.action == "replace"
    file.path.write_text("new")
    assert file.action == "unchanged"
