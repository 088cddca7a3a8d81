"""A Jetson AGX Orin: files of its kernel, and what its jtop service tells. NOT RECORDED: we had no board.

Written after public documents. Layout and names:
- Jetson Linux Developer Guide r35.6, "Platform Power and Performance, Jetson Orin Nano, NX and AGX Orin": channels of the two
  INA3221 of the AGX Orin (VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0, a channel that is not connected, "NC"; VDDQ_VDD2_1V8AO),
  thermal zones (cpu, gpu, cv0, soc0, tj), slowdown by software at 99 C, power modes of nvpmodel (MAXN, 15W, 30W, 50W).
- A zone whose block is powered down (cv0) does not answer: the guide and jetson-stats both treat that as "offline".
- GPU: devfreq "17000000.gpu", `load` in thousandths, `cur_freq` in hertz (jetson-stats 7.2, `jtop/core/gpu.py`).
- Over-current counters "oc1_event_cnt" with "oc1_throt_en" (NVIDIA developer forum, thread 361188, same driver on Thor).
- JTOP: keys and units as the docstrings of `jtop.jtop` say (jetson-stats 7.2: mW, kHz, kB, Celsius, -256 for offline).
Numbers are of a plausible loaded board, made up.
"""

from __future__ import annotations

from typing import Any

_HWMON = "sys/class/hwmon"
_ZONES = "sys/class/thermal"

FILES = {
    "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\x00",
    "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\x00nvidia,p3701-0005\x00nvidia,tegra234\x00",
    f"{_ZONES}/thermal_zone0/type": "cpu-thermal",
    f"{_ZONES}/thermal_zone0/temp": "63500",
    f"{_ZONES}/thermal_zone0/trip_point_0_type": "critical",
    f"{_ZONES}/thermal_zone0/trip_point_0_temp": "104500",
    f"{_ZONES}/thermal_zone0/trip_point_1_type": "passive",
    f"{_ZONES}/thermal_zone0/trip_point_1_temp": "99000",
    f"{_ZONES}/thermal_zone1/type": "gpu-thermal",
    f"{_ZONES}/thermal_zone1/temp": "66250",
    f"{_ZONES}/thermal_zone1/trip_point_0_type": "passive",
    f"{_ZONES}/thermal_zone1/trip_point_0_temp": "99000",
    f"{_ZONES}/thermal_zone2/type": "cv0-thermal",  # powered down: no temp
    f"{_ZONES}/thermal_zone3/type": "tj-thermal",
    f"{_ZONES}/thermal_zone3/temp": "66500",
    f"{_HWMON}/hwmon0/name": "tmp451",
    f"{_HWMON}/hwmon3/name": "ina3221",
    f"{_HWMON}/hwmon3/in1_label": "VDD_GPU_SOC",
    f"{_HWMON}/hwmon3/in1_input": "19640",
    f"{_HWMON}/hwmon3/curr1_input": "800",
    f"{_HWMON}/hwmon3/in2_label": "VDD_CPU_CV",
    f"{_HWMON}/hwmon3/in2_input": "19640",
    f"{_HWMON}/hwmon3/curr2_input": "200",
    f"{_HWMON}/hwmon3/in3_label": "VIN_SYS_5V0",
    f"{_HWMON}/hwmon3/in3_input": "5000",
    f"{_HWMON}/hwmon3/curr3_input": "900",
    f"{_HWMON}/hwmon3/in7_label": "sum of shunt voltages",
    f"{_HWMON}/hwmon4/name": "ina3221",
    f"{_HWMON}/hwmon4/in1_label": "NC",
    f"{_HWMON}/hwmon4/in1_input": "0",
    f"{_HWMON}/hwmon4/in2_label": "VDDQ_VDD2_1V8AO",
    f"{_HWMON}/hwmon4/in2_input": "5000",
    f"{_HWMON}/hwmon4/curr2_input": "240",
    f"{_HWMON}/hwmon5/name": "soctherm_oc",
    f"{_HWMON}/hwmon5/oc1_event_cnt": "0",
    f"{_HWMON}/hwmon5/oc1_throt_en": "0",
    f"{_HWMON}/hwmon5/oc3_event_cnt": "2",
    f"{_HWMON}/hwmon5/oc3_throt_en": "1",
    "sys/class/devfreq/17000000.gpu/cur_freq": "918000000",
    "sys/class/devfreq/17000000.gpu/device/load": "874",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=1 NAME=MODE_15W >\n"
    "< POWER_MODEL ID=2 NAME=MODE_30W >\n< POWER_MODEL ID=3 NAME=MODE_50W >",
    "var/lib/nvpmodel/status": "pmode:0002",
}

WATTS = (19640 * 800 + 19640 * 200 + 5000 * 900 + 5000 * 240) / 1e6  # no rail of this board is the whole: all together

JTOP: dict[str, Any] = {
    "board": {"hardware": {"Module": "NVIDIA Jetson AGX Orin", "Jetpack": "6.2", "CUDA Arch BIN": "8.7"}},
    "temperature": {
        "cpu": {"temp": 63.5, "online": True},
        "gpu": {"temp": 66.25, "online": True},
        "cv0": {"temp": -256, "online": False},
        "nvme Composite": {"temp": 78.0, "online": True, "max": 84.0, "crit": 85.0},
    },
    "power": {
        "rail": {"VDD_GPU_SOC": {"volt": 19640, "curr": 800, "power": 15712, "avg": 15500}},
        "tot": {"power": 25340, "avg": 25100},
    },
    "gpu": {"ga10b": {"type": "integrated", "status": {"load": 87.4}, "freq": {"cur": 918000, "max": 1300500}}},
    "memory": {"RAM": {"tot": 64_000_000, "used": 20_000_000, "shared": 9_500_000}},
    "nvpmodel": {"name": "MODE_30W", "models": ["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"]},
}
