"""GeForce cards as NVML tells of them. NOT RECORDED: written after the NVML API reference and `nvidia-ml-py` 13.

Units are NVML's: Celsius, milliwatts, bytes, percent, MHz, a bit mask of clock event reasons. The limits of the RTX 3090
(slowdown at 95 C, at most 93 C in work) are those that `nvidia-smi -q` prints for such cards; the RTX 4090 answers with a margin
instead ("GPU T.Limit Temp"), and "not supported" for the thresholds. Numbers of load are made up.
"""

from __future__ import annotations

from typing import Any

import pynvml

GIB = 1024**3

RTX_3090: dict[Any, Any] = {
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 3090",
    "nvmlDeviceGetTemperature": 71,
    ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX): 93,
    ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN): 95,
    "nvmlDeviceGetPowerUsage": 341_250,
    "nvmlDeviceGetMemoryInfo": (18 * GIB, 24 * GIB),
    "nvmlDeviceGetUtilizationRates": 97,
    "nvmlDeviceGetClockInfo": 1695,
    "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksEventReasonSwPowerCap,  # a driver before 535
}

RTX_4090: dict[Any, Any] = {
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
    "nvmlDeviceGetTemperature": 82,
    "nvmlDeviceGetMarginTemperature": 2,
    "nvmlDeviceGetPowerUsage": 402_000,
    "nvmlDeviceGetMemoryInfo": (20 * GIB, 24 * GIB),
    "nvmlDeviceGetUtilizationRates": 99,
    "nvmlDeviceGetClockInfo": 2520,
    "nvmlDeviceGetCurrentClocksEventReasons": pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonSwPowerCap,
}
