"""Convolutions as products: the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgewise.models.onnx_session import open_session, options_for
from edgewise.models.speech.products import convolutions_as_products

CHANNELS, OUTPUTS, TIME = 5, 7, 23


def network(width: int, dilation: int, pads: tuple[int, int], stride: int = 1, signed: bool = False) -> onnx.ModelProto:
    """Weights so small that sums of their products fit into 16 bits: this runs on any processor."""
    chance = np.random.default_rng(width + dilation)
    kind: Any = np.int8 if signed else np.uint8
    weights = (chance.integers(-20, 20, size=(OUTPUTS, CHANNELS, width)) + (0 if signed else 128)).astype(kind)
    constants = {"w": weights, "wz": np.array(3 if signed else 131, dtype=kind), "xz": np.array(90, dtype=np.uint8)}
    node = helper.make_node(
        "ConvInteger",
        ["x", "w", "xz", "wz"],
        ["y"],
        name="conv",
        kernel_shape=[width],
        dilations=[dilation],
        pads=list(pads),
        strides=[stride],
        group=1,
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "convolution",
        [info("x", TensorProto.UINT8, [1, CHANNELS, "t"])],
        [info("y", TensorProto.INT32, [1, OUTPUTS, "u"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def computed(model: onnx.ModelProto) -> Any:
    sound = np.random.default_rng(1).integers(0, 255, size=(1, CHANNELS, TIME)).astype(np.uint8)
    return open_session(model.SerializeToString(), options_for(1)).run(None, {"x": sound})[0]


@pytest.mark.parametrize(
    ("width", "dilation", "pads"),
    [(1, 1, (0, 0)), (3, 1, (1, 1)), (5, 1, (2, 2)), (3, 3, (3, 3)), (7, 5, (15, 15)), (3, 1, (0, 2))],
)
@pytest.mark.parametrize("signed", [False, True])
def test_the_result_is_the_same_to_the_bit(width: int, dilation: int, pads: tuple[int, int], signed: bool) -> None:
    model = network(width, dilation, pads, signed=signed)
    before = computed(model)
    assert convolutions_as_products(model) == 1
    assert [node.op_type for node in model.graph.node].count("ConvInteger") == 0
    assert "w" not in [one.name for one in model.graph.initializer]
    onnx.checker.check_model(model)
    assert np.array_equal(computed(model), before)


def test_what_has_steps_stays_as_it_is() -> None:
    model = network(3, 1, (1, 1), stride=2)
    before = computed(model)
    assert convolutions_as_products(model) == 0
    assert np.array_equal(computed(model), before)
