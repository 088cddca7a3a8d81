"""Boards and cards as public documents describe them: what is told, and that nothing raises where nothing is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.hardware.choose import choose_hardware
from edgewise.edge.hardware.energy import Energy
from edgewise.edge.hardware.linux import LinuxState, read_linux
from edgewise.edge.hardware.machine import Machine
from edgewise.edge.hardware.protocol import Readings
from tests.fakes.hardware import orin, rtx, thor
from tests.fakes.hardware.nvml import FakeNvml
from tests.fakes.hardware.tree import plant


def choose(tmp_path: Path, files: dict[str, str], cards: list[Any] | None = None) -> tuple[Machine, Path]:
    root = plant(tmp_path / "root", files)
    return choose_hardware(tmp_path, root=root, nvml=FakeNvml(cards)), root


def test_an_orin_by_the_files_of_its_kernel(tmp_path: Path) -> None:
    machine, root = choose(tmp_path, orin.FILES)
    told = machine.describe()
    assert told["family"] == "NVIDIA Jetson AGX Orin Developer Kit"
    assert told["accelerators"] == [
        {"name": "NVIDIA Jetson AGX Orin Developer Kit GPU", "kind": "cuda", "unified": True}
    ]
    assert told["power_modes"] == ["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"]
    readings = machine.read()
    assert (readings.temperature_c, readings.margin_c) == (66.5, 32.75)
    assert readings.power_w == pytest.approx(orin.WATTS)
    assert (readings.gpu_utilization, readings.gpu_clock_mhz) == (0.874, 918.0)
    assert (readings.power_mode, readings.throttled, readings.reasons) == ("MODE_30W", False, ())
    (root / "sys/class/hwmon/hwmon5/oc3_event_cnt").write_text("3\n")
    (root / "sys/class/hwmon/hwmon5/oc1_event_cnt").write_text("9\n")  # counts, but slows nothing down
    assert (machine.read().throttled, machine.read().throttled) == (True, False)
    (root / "sys/class/thermal/thermal_zone1/temp").write_text("99500\n")
    assert (machine.read().throttled, machine.read().margin_c) == (True, -0.5)


def test_a_rail_that_does_not_answer_leaves_the_power_unknown(tmp_path: Path) -> None:
    machine, root = choose(tmp_path, orin.FILES)
    (root / "sys/class/hwmon/hwmon3/curr2_input").unlink()
    assert machine.read().power_w is None


def test_a_thor_by_its_board_and_by_nvml(tmp_path: Path) -> None:
    machine, _ = choose(tmp_path, thor.FILES, [thor.CARD])
    readings = machine.read()
    assert readings.power_w == thor.WATTS  # the board's input, not the GPU's rail and not both
    assert (readings.gpu_utilization, readings.gpu_clock_mhz, readings.gpu_memory_used) == (0.64, 1575.0, None)
    assert (readings.power_mode, readings.throttled) == ("MAXN", False)  # the event at boot is none of now
    assert (readings.temperature_c, readings.margin_c) == (61.0, 41.0)


def test_an_orin_by_jetson_stats_and_by_its_files_once_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FakeJtop(orin.JTOP)
    monkeypatch.setitem(sys.modules, "jtop", jtop_module(service))
    machine, _ = choose(tmp_path, orin.FILES)
    assert machine.describe()["accelerators"] == [
        {"name": "NVIDIA Jetson AGX Orin GPU", "kind": "cuda", "unified": True, "jetpack": "6.2", "cuda_arch": "8.7"}
    ]
    readings = machine.read()
    assert (readings.power_w, readings.gpu_memory_used) == (25.34, 9_500_000 * 1024)
    assert (readings.temperature_c, readings.gpu_utilization) == (66.5, 0.874)
    service.lost = True
    assert machine.read().power_w == pytest.approx(orin.WATTS)
    assert machine.read().gpu_memory_used is None
    assert machine.describe()["power_modes"] == ["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"]


def test_jetson_stats_without_its_service_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jtop", jtop_module(FakeJtop(orin.JTOP, refuses=True)))
    machine, _ = choose(tmp_path, orin.FILES)
    assert machine.read().power_w == pytest.approx(orin.WATTS)


def test_cards_beside_a_host(tmp_path: Path) -> None:
    machine, _ = choose(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "51000"}, [rtx.RTX_3090, rtx.RTX_4090])
    told = machine.describe()
    assert [one["name"] for one in told["accelerators"]] == ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"]
    assert told["accelerators"][0]["memory_bytes"] == 24 * rtx.GIB
    readings = machine.read()
    assert (readings.temperature_c, readings.margin_c) == (82.0, 2.0)
    assert readings.power_w == pytest.approx(743.25)
    assert (readings.gpu_memory_used, readings.gpu_memory_total) == (38 * rtx.GIB, 48 * rtx.GIB)
    assert (readings.gpu_utilization, readings.gpu_clock_mhz) == (0.98, 2520.0)
    assert readings.throttled
    assert readings.reasons == ("power cap", "thermal slowdown by software")


def test_a_card_at_its_power_cap_is_not_throttled_and_has_its_thresholds(tmp_path: Path) -> None:
    machine, _ = choose(tmp_path, {}, [rtx.RTX_3090])
    readings = machine.read()
    assert (readings.throttled, readings.reasons, readings.margin_c) == (False, ("power cap",), 22.0)


def test_a_card_that_fell_off_the_bus_is_unknown_and_so_is_the_sum(tmp_path: Path) -> None:
    cards: list[Any] = [rtx.RTX_3090, dict(rtx.RTX_4090)]
    machine, _ = choose(tmp_path, {}, cards)
    assert machine.read().power_w is not None
    cards[1] = {}
    readings = machine.read()
    assert (readings.power_w, readings.gpu_memory_used, readings.gpu_utilization) == (None, None, None)
    assert readings.temperature_c == 71.0


def test_this_machine_tells_what_it_can(tmp_path: Path) -> None:
    readings = choose_hardware(tmp_path).read()
    assert isinstance(readings, Readings)
    assert 0 < readings.memory_used < readings.memory_total
    bare, _ = choose(tmp_path, {}, None)
    assert bare.describe()["accelerators"] == []


def test_linux_tells_heat_and_power_supply_where_it_knows_them(tmp_path: Path) -> None:
    assert read_linux(tmp_path) == LinuxState()
    files = {
        "class/thermal/thermal_zone0/temp": "45000",
        "class/thermal/thermal_zone0/trip_point_0_type": "critical",
        "class/thermal/thermal_zone0/trip_point_0_temp": "110000",
        "class/thermal/thermal_zone1/temp": "71500\n",
        "class/thermal/thermal_zone1/trip_point_0_type": "passive",
        "class/thermal/thermal_zone1/trip_point_0_temp": "85000",
        "class/power_supply/BAT0/type": "Battery",
        "class/power_supply/BAT0/capacity": "80",
        "class/power_supply/AC/type": "Mains",
        "class/power_supply/AC/online": "0",
        "firmware/acpi/platform_profile": "low-power",
    }
    root = plant(tmp_path / "sys", files)
    expected = LinuxState(hottest_c=71.5, margin_c=13.5, on_battery=True, charge=0.8, profile="low-power")
    assert read_linux(root) == expected
    plant(root, {"class/power_supply/AC/online": "1", "class/thermal/thermal_zone1/temp": "no number"})
    assert read_linux(root) == replace(expected, hottest_c=45.0, margin_c=None, on_battery=False)
    readings = choose(tmp_path, {f"sys/{name}": text for name, text in files.items()})[0].read()
    assert (readings.on_battery, readings.charge) == (True, 0.8)


@pytest.mark.parametrize(
    ("files", "saving"),
    [
        ({"sys/firmware/acpi/platform_profile": "low-power"}, "the power profile is low-power"),
        (
            {
                "sys/class/power_supply/BAT0/type": "Battery",
                "sys/class/power_supply/BAT0/capacity": "12",
                "sys/class/power_supply/AC/type": "Mains",
                "sys/class/power_supply/AC/online": "0",
            },
            "the battery is at 12 %",
        ),
        ({"sys/firmware/acpi/platform_profile": "balanced"}, None),
    ],
)
def test_energy_is_to_be_saved(tmp_path: Path, files: dict[str, str], saving: str | None) -> None:
    machine, _ = choose(tmp_path, files)
    assert machine.read().saving == saving


@given(st.lists(st.tuples(st.floats(0, 60), st.none() | st.floats(0, 1000)), max_size=30))
def test_energy_never_goes_back_and_is_unknown_without_a_reading(steps: list[tuple[float, float | None]]) -> None:
    energy, now, before = Energy(), 0.0, 0.0
    assert energy.joules(now) is None
    for seconds, watts in steps:
        now += seconds
        energy.add(now, watts)
        joules = energy.joules(now)
        if watts is not None:
            assert joules is not None
        if joules is not None:
            assert joules >= before - 1e-6
            before = joules


def test_energy_is_watts_times_seconds() -> None:
    energy = Energy()
    for second, watts in enumerate([10.0, 20.0, 20.0]):
        energy.add(float(second), watts)
    assert energy.joules(2.5) == 10.0 + 20.0 + 10.0
    assert energy.joules(100.0) is None


class FakeJtop:
    """A connection to jtop's service that replays a fixture; `lost` ends it as the client does, by raising."""

    def __init__(self, told: dict[str, Any], *, refuses: bool = False) -> None:
        self.lost = False
        self._refuses = refuses
        for name in ("board", "temperature", "power", "gpu", "memory"):
            setattr(self, name, told[name])
        self.nvpmodel = SimpleNamespace(**told["nvpmodel"])

    def start(self) -> None:
        if self._refuses:
            raise JtopException("The jtop.service is not active.")

    def ok(self, spin: bool = False) -> bool:
        assert spin, "it would wait"
        if self.lost:
            raise JtopException("Lost connection to the service")
        return True


class JtopException(Exception):
    pass


def jtop_module(service: FakeJtop) -> ModuleType:
    module = ModuleType("jtop")
    module.JtopException = JtopException  # type: ignore[attr-defined]
    module.jtop = lambda interval: service  # type: ignore[attr-defined]
    return module
