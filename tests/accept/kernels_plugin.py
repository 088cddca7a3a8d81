"""A pytest plugin: engines that tests build with kernels "auto" get those that the environment names; what was built is counted.

EDGEWISE_TEST_KERNELS=native EDGEWISE_TEST_KERNELS_REPORT=out.json pytest -p tests.accept.kernels_plugin tests/engine/...
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ConfigError
from edgewise.engine import build as building
from edgewise.engine.config import EngineConfig

KERNELS, REPORT = "EDGEWISE_TEST_KERNELS", "EDGEWISE_TEST_KERNELS_REPORT"
_original: Callable[..., Any] = building.build_parts
_built: Counter[str] = Counter()
_outcomes: Counter[str] = Counter()


def _build_parts(config: EngineConfig, *rest: Any, **options: Any) -> Any:
    try:
        wanted = os.environ[KERNELS] if config.kernels == "auto" else config.kernels
        built = _original(replace(config, kernels=wanted), *rest, **options)  # type: ignore[arg-type]
    except ConfigError as error:
        if error.param != "engine.kernels" or config.kernels != "auto":
            raise
        built = _original(config, *rest, **options)  # a kind of model that those kernels do not compute
    _built[built.engine.info.numeric_class] += 1
    return built


if KERNELS in os.environ:  # else it was imported for its names
    vars(building)["build_parts"] = _build_parts  # before a test module imports it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.outcome] += 1


def pytest_sessionfinish() -> None:
    found = {"outcomes": dict(_outcomes), "numeric_classes": dict(_built)}
    Path(os.environ[REPORT]).write_text(json.dumps(found))
