"""The tensors of one part of a model, e.g. of its vision tower, taken by name and shape."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch.nn.functional import layer_norm, linear

from edgewise.core.errors import BadModelFile
from edgewise.models.weights.reader import WeightReader


class Part:
    """Tensors whose names begin with a prefix; they are called without it."""

    def __init__(
        self, reader: WeightReader, prefixes: Sequence[str], *, device: torch.device, dtype: torch.dtype, name: str
    ) -> None:
        """Args:
        prefixes: Checkpoints of different age call a part differently; the first that any tensor has is taken.
        name: What errors call the model.
        """
        self._reader = reader
        self._device = device
        self._dtype = dtype
        self._name = name
        stored = reader.tensors
        self._prefix = next((it for it in prefixes if any(name.startswith(it) for name in stored)), prefixes[0])

    def within(self, prefix: str) -> Part:
        """A part of this part."""
        inner = copy(self)
        inner._prefix = self._prefix + prefix
        return inner

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Raises:
        BadModelFile: It is missing or of another shape.
        """
        full = self._prefix + name
        info = self._reader.tensors.get(full)
        if info is None:
            raise BadModelFile(f"{self._name}: the tensor '{full}' is missing.")
        if info.shape != shape:
            raise BadModelFile(f"{self._name}: the tensor '{full}' is {info.shape}, the configuration says {shape}.")
        tensor = torch.empty(shape, dtype=self._dtype)
        self._reader.read_into(full, tensor)
        return tensor.to(self._device)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Linear:
        weight = self.take(f"{name}.weight", outputs, inputs)
        return Linear(weight, self.take(f"{name}.bias", outputs) if bias else None)

    def layer_norm(self, name: str, width: int, eps: float) -> LayerNorm:
        return LayerNorm(self.take(f"{name}.weight", width), self.take(f"{name}.bias", width), eps)


class Linear:
    """[..., inputs] -> [..., outputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class LayerNorm:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm:
    """In float32, as the language models' norms are. `offset` is added to the stored weight (Gemma)."""

    def __init__(self, weight: torch.Tensor, eps: float, offset: float = 0.0) -> None:
        self.weight = weight.float() + offset
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight).to(x.dtype)
