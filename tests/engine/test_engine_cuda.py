"""The engine on a CUDA device: every check of `tests.accept.cuda`, which also runs without a test framework."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.models.files import ModelFiles
from tests.accept.cuda import BY_FORMAT, KV_FORMATS, ONCE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no usable CUDA device")


@pytest.mark.parametrize("check", ONCE)
def test_whatever_the_format(tiny_model: ModelFiles, check: Callable[[ModelFiles, Path], None], tmp_path: Path) -> None:
    check(tiny_model, tmp_path)


@pytest.mark.parametrize("kv_dtype", KV_FORMATS)
@pytest.mark.parametrize("check", BY_FORMAT)
def test_in_each_format(
    tiny_model: ModelFiles, check: Callable[[ModelFiles, str, Path], None], kv_dtype: str, tmp_path: Path
) -> None:
    check(tiny_model, kv_dtype, tmp_path)


def test_auto_takes_the_device_and_books_its_memory(tiny_model: ModelFiles) -> None:
    core = build(EngineConfig(model=tiny_model), lambda phase, done: None)
    assert core.info.device.startswith("cuda")
    expected = "fp8" if torch.cuda.get_device_capability() >= (8, 9) else "int8"
    assert (core.info.dtype, core.info.kv_dtype) == ("bfloat16", expected)
    report = core.memory()
    assert report.booked["kv_cache"] > 0
    assert sum(report.booked.values()) <= report.budget_bytes
