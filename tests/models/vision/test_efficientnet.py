"""The graph that is written for EfficientNet-lite0, against the same network in torch, on random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from edgewise.core.errors import BadModelFile
from edgewise.models.vision.efficientnet import SIDE, efficientnet_lite0, read_checkpoint

STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]
"""Repeats, kernel, stride, expansion, width."""


def random_weights() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor] = {}

    def convolution(name: str, norm: str, *shape: int) -> None:
        fan = shape[1] * shape[2] * shape[3]
        made[f"{name}.weight"] = torch.randn(shape, generator=chance) * (2 / fan) ** 0.5
        for part, low, high in (
            ("weight", 0.8, 1.2),
            ("bias", -0.2, 0.2),
            ("running_mean", -0.2, 0.2),
            ("running_var", 0.8, 1.2),
        ):
            made[f"{norm}.{part}"] = torch.empty(shape[0]).uniform_(low, high, generator=chance)
        made[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    convolution("_conv_stem", "_bn0", 32, 3, 3, 3)
    number, inner = 0, 32
    for repeats, kernel, _, expansion, width in STAGES:
        for _repeat in range(repeats):
            prefix, wide = f"_blocks.{number}.", inner * expansion
            if expansion > 1:
                convolution(f"{prefix}_expand_conv", f"{prefix}_bn0", wide, inner, 1, 1)
            convolution(f"{prefix}_depthwise_conv", f"{prefix}_bn1", wide, 1, kernel, kernel)
            convolution(f"{prefix}_project_conv", f"{prefix}_bn2", width, wide, 1, 1)
            number, inner = number + 1, width
    convolution("_conv_head", "_bn1", 1280, inner, 1, 1)
    made["_fc.weight"] = torch.randn((1000, 1280), generator=chance) * 0.03
    made["_fc.bias"] = torch.randn(1000, generator=chance)
    return made


def reference(weights: dict[str, torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Convolution, norm and activation one after the other, padded as TensorFlow does."""

    def layer(
        value: torch.Tensor, name: str, norm: str, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> torch.Tensor:
        kernel = weights[f"{name}.weight"].shape[-1]
        size = value.shape[-1]
        whole = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        value = functional.pad(value, [whole // 2, whole - whole // 2] * 2)
        value = functional.conv2d(value, weights[f"{name}.weight"], stride=stride, groups=groups)
        mean, var = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        value = functional.batch_norm(value, mean, var, weights[f"{norm}.weight"], weights[f"{norm}.bias"], eps=1e-3)
        return functional.relu6(value) if relu else value

    value = layer(value, "_conv_stem", "_bn0", stride=2)
    number = 0
    for repeats, _kernel, stride, expansion, _width in STAGES:
        for repeat in range(repeats):
            begin, prefix = value, f"_blocks.{number}."
            if expansion > 1:
                value = layer(value, f"{prefix}_expand_conv", f"{prefix}_bn0")
            value = layer(
                value, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride if repeat == 0 else 1, value.shape[1]
            )
            value = layer(value, f"{prefix}_project_conv", f"{prefix}_bn2", relu=False)
            value = value + begin if repeat > 0 else value
            number += 1
    value = layer(value, "_conv_head", "_bn1").mean((2, 3))
    return functional.linear(value, weights["_fc.weight"], weights["_fc.bias"])


def test_the_graph_computes_what_the_network_does(tmp_path: Path) -> None:
    weights = random_weights()
    torch.save(weights, tmp_path / "checkpoint.pth")
    graph = efficientnet_lite0(read_checkpoint(tmp_path / "checkpoint.pth"))
    pictures = torch.rand((2, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1)) * 2 - 1
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"pictures": pictures.numpy()})
    expected = reference(weights, pictures).numpy()
    assert found.shape == (2, 1000)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(b"no checkpoint")
    with pytest.raises(BadModelFile, match=r"x\.pth is no checkpoint of tensors"):
        read_checkpoint(tmp_path / "x.pth")
    with pytest.raises(BadModelFile, match="The checkpoint is not EfficientNet-lite0's"):
        efficientnet_lite0({})
