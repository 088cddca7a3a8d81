"""Decoders driven step by step, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from edgewise.models.files import ModelFiles
from tests.models.decoder.driver import Driver, load


@pytest.fixture
def driver() -> Callable[..., Driver]:
    """Options: those of `Driver`, with `files` and `dtype` instead of a decoder."""

    def make(files: ModelFiles, dtype: torch.dtype = torch.float32, **options: object) -> Driver:
        return Driver(load(files, dtype), **options)  # type: ignore[arg-type]

    return make
