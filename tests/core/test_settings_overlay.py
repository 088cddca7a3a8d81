"""Settings that a fleet sets: below the device's own, and never a reason not to start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import ConfigError, InvalidRequest
from edgewise.core.settings import LoadedSettings, load_settings, settings_fields, with_fleet
from edgewise.core.settings_overlay import LOCAL_ONLY, NAME, Overlay, Values, check_keys, read_overlay, write_overlay


def load(home: Path, text: str = "", **flags: object) -> LoadedSettings:
    (home / "device.toml").write_text(text)
    return load_settings(home / "device.toml", flags, environ={"EDGEWISE_HOME": str(home)})


def test_they_are_above_defaults_and_below_everything_else(tmp_path: Path) -> None:
    values = {"drain_s": 7.0, "port": 1, "limits.keepalive_s": 3.0, "placement.policy": "cheapest"}
    write_overlay(tmp_path, Overlay(good=Values(gen=4, values=values)))
    loaded = load(tmp_path, "port = 2\n[limits]\nkeepalive_s = 4.0\n", **{"limits.keepalive_s": 5.0})
    assert (loaded.settings.drain_s, loaded.settings.port, loaded.settings.limits.keepalive_s) == (7.0, 2, 5.0)
    assert loaded.origins["drain_s"] == "fleet"
    assert loaded.origins["port"] == str(tmp_path / "device.toml")
    assert loaded.fleet_fault is None


def test_those_on_trial_are_in_force_and_the_good_ones_come_back(tmp_path: Path) -> None:
    good, trial = Values(gen=1, values={"drain_s": 1.0}), Values(gen=2, values={"drain_s": 2.0})
    write_overlay(tmp_path, Overlay(trial=trial, good=good))
    assert load(tmp_path).settings.drain_s == 2.0
    overlay = read_overlay(tmp_path)
    assert overlay.proven() == Overlay(good=trial)
    write_overlay(tmp_path, overlay.given_up("it did not start"))
    assert load(tmp_path).settings.drain_s == 1.0
    assert (read_overlay(tmp_path).failed, read_overlay(tmp_path).why) == (2, "it did not start")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"good": {"gen": 1, "values": {"no.such": 1}}}',
        '{"good": {"gen": 1, "values": {"drain_s": "long"}}}',
        '{"good": {"gen": 1, "values": {"drain_s": true}}}',
    ],
)
def test_what_is_damaged_or_of_another_release_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    loaded = load(tmp_path)
    assert loaded.settings.drain_s == 20.0
    assert loaded.fleet_fault is not None


def test_an_unknown_key_or_a_wrong_value_is_refused_by_name(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean `placement\.policy`"):
        with_fleet(loaded, {"placement.polcy": "auto"})
    with pytest.raises(ConfigError, match=r"`drain_s`.*from fleet"):
        with_fleet(loaded, {"drain_s": -1})


@given(st.sampled_from(sorted(settings_fields())))
def test_who_may_reach_the_device_and_whom_it_trusts_is_its_own_affair(key: str) -> None:
    local = key in LOCAL_ONLY or key.split(".")[0] in LOCAL_ONLY
    if not local:
        check_keys({key: None})
        return
    with pytest.raises(InvalidRequest, match="at the device only"):
        check_keys({key: None})
