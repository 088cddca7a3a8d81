"""A Jetson AGX Thor: files of its kernel, and its GPU as NVML tells it. NOT RECORDED: we had no board.

Written after public documents:
- jetson-stats 7.2, `jtop/core/power.py`: module rails on an INA3221, and the carrier board's whole input, "VIN", on an INA238
  with `power1_input` in microwatts; `jtop/core/gpu.py`: devfreq "gpu-gpc-0"; `jtop/core/jetson_variables.py`: tegra264,
  module p3834-0008; NVML there tells utilization and clocks, and answers "not supported" for memory.
- NVIDIA developer forum, thread 361188 (L4T R38.4): over-current counters of the Thor, `oc3_throt_en` 1 with one event that
  happened at boot, power mode 0 is MAXN, 36 C when idle.
Numbers are of a plausible loaded board, made up.
"""

from __future__ import annotations

_HWMON = "sys/class/hwmon"
_ZONES = "sys/class/thermal"

FILES = {
    "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\x00",
    "proc/device-tree/compatible": "nvidia,p3971-0089+p3834-0008\x00nvidia,p3834-0008\x00nvidia,tegra264\x00",
    f"{_ZONES}/thermal_zone0/type": "cpu-thermal",
    f"{_ZONES}/thermal_zone0/temp": "58000",
    f"{_ZONES}/thermal_zone0/trip_point_0_type": "passive",
    f"{_ZONES}/thermal_zone0/trip_point_0_temp": "99000",
    f"{_ZONES}/thermal_zone1/type": "gpu-thermal",
    f"{_ZONES}/thermal_zone1/temp": "61000",
    f"{_HWMON}/hwmon2/name": "ina3221",
    f"{_HWMON}/hwmon2/in1_label": "VDD_GPU",
    f"{_HWMON}/hwmon2/in1_input": "12000",
    f"{_HWMON}/hwmon2/curr1_input": "3000",
    f"{_HWMON}/hwmon2/in2_label": "VDD_CPU_SOC_MSS",
    f"{_HWMON}/hwmon2/in2_input": "12000",
    f"{_HWMON}/hwmon2/curr2_input": "1500",
    f"{_HWMON}/hwmon3/name": "ina238",
    f"{_HWMON}/hwmon3/power1_input": "71500000",
    f"{_HWMON}/hwmon4/name": "soctherm_oc",
    f"{_HWMON}/hwmon4/oc3_event_cnt": "1",
    f"{_HWMON}/hwmon4/oc3_throt_en": "1",
    "sys/class/devfreq/gpu-gpc-0/cur_freq": "1575000000",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=120W >",
    "var/lib/nvpmodel/status": "pmode:0000",
}

WATTS = 71.5

CARD = {
    "nvmlDeviceGetName": "NVIDIA Thor",
    "nvmlDeviceGetUtilizationRates": 64,
    "nvmlDeviceGetClockInfo": 1575,
    "nvmlDeviceGetPowerUsage": 36_000,  # the GPU's own rail: the board's input counts
}
