"""The Triton kernels under Triton's interpreter, which runs them on the CPU."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

STEP = (
    *("decode_attention", "decode_product", "embed", "expert_product", "fp8_product", "long_rows", "post_norm"),
    *("prefill_attention", "routing", "sampling", "step_rows", "weights"),
)
"""Modules that a decoder computes with."""


def interpreted_decoder() -> None:
    """As `interpreted`, of all that a decoder computes with."""
    for name in STEP:
        interpreted(name)


def interpreted(name: str) -> ModuleType:
    """`edgewise.kernels.triton.<name>`; skips the calling module where Triton is missing or was imported as a compiler."""
    if "triton" in sys.modules and "edgewise.kernels.triton" not in sys.modules:
        pytest.skip("Triton was imported before it could be told to interpret", allow_module_level=True)
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        pytest.importorskip("triton", reason="Triton is not installed")
        trial = importlib.import_module("edgewise.kernels.triton.trial")
        _read_scalars_of_one_element()
        # Triton reads the variable once more when it first runs a kernel.
        assert trial.why_not(torch.device("cpu")) is None
        return importlib.import_module(f"edgewise.kernels.triton.{name}")


def _read_scalars_of_one_element() -> None:
    """numpy 2.5 makes no number of an array [1] any more, as Triton 3.6 has it do with the bounds of loops."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    if patch.__name__ != "patched":
        interpreter._patch_lang_tensor = patched
