"""Nodes and constants of an ONNX graph as they are added; a node is called as its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgewise.models.encoders.weights import Array

MICROSOFT: Final = "com.microsoft"
_LARGE: Final = 1 << 16
"""Bytes of a constant."""


class Nodes:
    """A graph in the making.

    Args:
        given: Takes large constants, which whoever opens the graph gives; None where the graph holds all.
    """

    def __init__(self, given: dict[str, Array] | None = None) -> None:
        self._given = given
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._named: set[str] = set()

    def add(self, op: str, inputs: list[str], out: str, *, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [out], name=out, domain=domain, **attributes))
        return out

    def constant(self, name: str, value: Any) -> str:
        """The value under this name; it is stored once."""
        if name not in self._named:
            self._named.add(name)
            array = np.ascontiguousarray(value).reshape(np.shape(value))
            if self._given is not None and array.nbytes > _LARGE and array.dtype == np.float32:
                self._given[name] = array
                return self.outside(name, array)
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def outside(self, name: str, value: Array) -> str:
        """A constant that whoever opens the graph gives: one message of protobuf holds 2 GiB, and is copied several times."""
        made = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape)
        made.data_location = TensorProto.EXTERNAL
        made.external_data.add(key="location", value="given")
        self.constants.append(made)
        return name

    def choose(self, condition: str, then: Callable[[str], str], otherwise: Callable[[str], str], out: str) -> str:
        """One of two, each made by a function of its output's name; only what is chosen is computed."""
        yes, no = self._branch(then, f"{out}.then"), self._branch(otherwise, f"{out}.else")
        return self.add("If", [condition], out, then_branch=yes, else_branch=no)

    def _branch(self, made: Callable[[str], str], name: str) -> onnx.GraphProto:
        outside, self.nodes = self.nodes, []
        out = made(name)
        inside, self.nodes = self.nodes, outside
        return helper.make_graph(inside, name, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
