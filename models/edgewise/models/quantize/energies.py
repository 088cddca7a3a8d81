"""What the matrices of a decoder are multiplied with: the mean square of every column of their inputs, measured on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edgewise.models.decoder.parameters import LayerParameters


@dataclass(frozen=True, slots=True)
class LayerEnergies:
    """Mean squares of the inputs of a layer's products: [hidden], [heads * head_dim], [hidden], [ffn]."""

    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class InputMeter(TorchFunctionMode):
    """While it is entered, sums the squares of the inputs of every product with a matrix of these layers."""

    def __init__(self, layers: Sequence[LayerParameters]) -> None:
        super().__init__()
        self._layers = layers
        matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        self._sums = {matrix.data_ptr(): torch.zeros(matrix.shape[1], dtype=torch.float64) for matrix in matrices}
        self._rows = dict.fromkeys(self._sums, 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear and args[1].data_ptr() in self._sums:
            x, key = args[0], args[1].data_ptr()
            self._sums[key] += x.double().square().sum(0)
            self._rows[key] += x.shape[0]
        return func(*args, **(kwargs or {}))

    def energies(self) -> list[LayerEnergies]:
        """Of every layer, float32.

        Raises:
            ValueError: Nothing was computed.
        """
        return [LayerEnergies(*map(self._mean, (it.qkv, it.output, it.gate_up, it.down))) for it in self._layers]

    def _mean(self, matrix: torch.Tensor) -> torch.Tensor:
        key = matrix.data_ptr()
        if not self._rows[key]:
            raise ValueError("no product was computed while the meter was entered")
        return (self._sums[key] / self._rows[key]).float()
