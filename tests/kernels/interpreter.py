"""The Triton kernels under Triton's interpreter, which runs them on the CPU."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from unittest import mock

import pytest
import torch


def interpreted(name: str) -> ModuleType:
    """`edgewise.kernels.triton.<name>`; skips the calling module where Triton is missing or was imported as a compiler."""
    if "triton" in sys.modules and "edgewise.kernels.triton" not in sys.modules:
        pytest.skip("Triton was imported before it could be told to interpret", allow_module_level=True)
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        pytest.importorskip("triton", reason="Triton is not installed")
        trial = importlib.import_module("edgewise.kernels.triton.trial")
        # Triton reads the variable once more when it first runs a kernel.
        assert trial.why_not(torch.device("cpu")) is None
        return importlib.import_module(f"edgewise.kernels.triton.{name}")
