"""Attention of an exported graph in ONNX Runtime's own operation, which never stores the scores of all pairs."""

from __future__ import annotations

from typing import Final

import onnx
from onnx import helper, numpy_helper

from edgewise.models.encoders.nodes import MICROSOFT

ATTENTION_OPSET: Final = 23
"""The first in which the exporter writes attention as one node."""
_OPSET: Final = 20
"""What the graph is of afterwards: runtimes have kernels of it on every device."""
_SWAP: Final = [0, 2, 1, 3]


def fuse_attention(model: onnx.ModelProto) -> int:
    """Each `Attention` between a division into heads and its undoing becomes `MultiHeadAttention`, in place; how many did.

    Graphs with none left are lowered to opset 20.
    """
    graph = model.graph
    made_by = {out: node for node in graph.node for out in node.output}
    used_by: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            used_by.setdefault(name, []).append(node)
    constants = {it.name: it for it in graph.initializer}
    fused = 0
    for node in [it for it in graph.node if it.op_type == "Attention"]:
        flat = [name for name in (_flat(made_by, it) for it in node.input[:3]) if name is not None]
        end = _joined(used_by, node.output[0])
        heads = _heads(made_by, constants, node.input[0])
        if len(node.input) != 3 or len(flat) != 3 or end is None or heads is None or _attribute(node, "is_causal"):
            continue
        scale = _attribute(node, "scale")
        made = helper.make_node(
            "MultiHeadAttention", flat, [end.output[0]], node.name, domain=MICROSOFT, num_heads=heads
        )
        if isinstance(scale, float):
            made.attribute.append(helper.make_attribute("scale", scale))
        node.CopyFrom(made)
        end.output[0] += ".unused"
        fused += 1
    if fused:
        _sweep(model)
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        _lower(model)
    return fused


def _flat(made_by: dict[str, onnx.NodeProto], name: str) -> str | None:
    """[n, tokens, width] of what was divided into heads."""
    swap = made_by.get(name)
    if swap is None or swap.op_type != "Transpose" or _attribute(swap, "perm") != _SWAP:
        return None
    split = made_by.get(swap.input[0])
    return None if split is None or split.op_type != "Reshape" else str(split.input[0])


def _joined(used_by: dict[str, list[onnx.NodeProto]], name: str) -> onnx.NodeProto | None:
    """The node that joins the heads again."""
    (swap, *others) = used_by.get(name, [None])
    if swap is None or others or swap.op_type != "Transpose" or _attribute(swap, "perm") != _SWAP:
        return None
    (join, *others) = used_by.get(swap.output[0], [None])
    return None if join is None or others or join.op_type != "Reshape" else join


def _heads(made_by: dict[str, onnx.NodeProto], constants: dict[str, onnx.TensorProto], name: str) -> int | None:
    split = made_by.get(made_by[name].input[0]) if name in made_by else None
    shape = None if split is None or len(split.input) < 2 else constants.get(split.input[1])
    if shape is None:
        return None
    sizes = numpy_helper.to_array(shape)
    return int(sizes[2]) if len(sizes) == 4 and sizes[2] > 0 else None


def _attribute(node: onnx.NodeProto, name: str) -> object:
    return next((helper.get_attribute_value(it) for it in node.attribute if it.name == name), None)


def _sweep(model: onnx.ModelProto) -> None:
    """Nodes and constants that nobody reads are dropped, and the rest put in order."""
    graph = model.graph
    makers = {out: node for node in graph.node for out in node.output}
    stack, seen = [it.name for it in graph.output], set()
    while stack:
        node = makers.get(stack.pop())
        if node is not None and id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.input)
    kept = [node for node in graph.node if id(node) in seen]
    names = {name for node in kept for name in node.input}
    constants = [it for it in graph.initializer if it.name in names]
    ordered = _ordered(kept, {it.name for it in graph.input} | {it.name for it in constants} | {""})
    shapes = [it for it in graph.value_info if it.name in names]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(ordered)
    graph.initializer.extend(constants)
    graph.value_info.extend(shapes)


def _ordered(nodes: list[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    found, left = [], list(nodes)
    while left:
        ready = [node for node in left if all(name in known for name in node.input)]
        assert ready, "the graph has a circle"
        for node in ready:
            known.update(node.output)
        found += ready
        taken = {id(node) for node in ready}
        left = [node for node in left if id(node) not in taken]
    return found


def _lower(model: onnx.ModelProto) -> None:
    if any(node.op_type == "Attention" for node in model.graph.node):
        return
    for it in model.opset_import:
        if it.domain in ("", "ai.onnx"):
            it.version = _OPSET
    onnx.checker.check_model(model)
