"""Nodes and constants of an ONNX graph as they are added; a node is called as its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT: Final = "com.microsoft"


class Nodes:
    """A graph in the making."""

    def __init__(self) -> None:
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
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def outside(self, name: str, shape: Sequence[int]) -> str:
        """A constant of float32 that whoever opens the graph gives: one message of protobuf holds 2 GiB."""
        made = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        made.data_location = TensorProto.EXTERNAL
        made.external_data.add(key="location", value="given")
        self.constants.append(made)
        return name

    def choose(self, condition: str, then: Callable[[str], str], otherwise: Callable[[str], str], out: str) -> str:
        """One of two, each made by a function of its output's name; only what is chosen is computed."""
        branches = {
            "then_branch": self._branch(then, f"{out}.then"),
            "else_branch": self._branch(otherwise, f"{out}.else"),
        }
        return self.add("If", [condition], out, **branches)

    def _branch(self, made: Callable[[str], str], name: str) -> onnx.GraphProto:
        outside, self.nodes = self.nodes, []
        out = made(name)
        inside, self.nodes = self.nodes, outside
        return helper.make_graph(inside, name, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
