"""The ONNX graph of a torch module, by torch's own exporter (`torch.export`, which writes what the module computes)."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.models.encoders.attention import ATTENTION_OPSET, fuse_attention
from edgewise.models.encoders.weights import Array

INPUT, OUTPUT, COUNT = "input", "output", "n"
_MOST_BYTES = (1 << 31) - (64 << 20)
"""One message of protobuf holds no more; larger graphs would need files beside them."""


def export(module: torch.nn.Module, example: Array) -> bytes:
    """A model of one float32 input "input" and one output "output", both of whose first axes count inputs.

    Args:
        module: In float32 and evaluation mode; one tensor in, one out.
        example: One input [1, ...].

    Raises:
        UnsupportedModel: It is too large for one file.
    """
    size = sum(it.numel() * it.element_size() for it in module.parameters())
    if size > _MOST_BYTES:
        raise UnsupportedModel(f"An encoder of {size} bytes is too large for one ONNX file of {_MOST_BYTES}.")
    twice = torch.from_numpy(np.concatenate([example, example]))  # of one, the exporter would take the size as fixed
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of deprecated parts inside torch
        program = torch.onnx.export(
            module,
            (twice,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim(COUNT)},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=ATTENTION_OPSET,
            verbose=False,
        )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    if model.graph.input[0].type.tensor_type.shape.dim[0].dim_param != COUNT:
        raise UnsupportedModel("The encoder computes a fixed number of inputs, so its graph would too.")
    for node in model.graph.node:
        del node.metadata_props[:]  # where in which file the module computes it: not for the record
    fuse_attention(model)
    return bytes(model.SerializeToString())


def to_half(graph: bytes) -> bytes:
    """The same graph in float16, which still takes and gives float32."""
    # Here: it brings much along.
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(graph))
    return bytes(convert_float_to_float16(model, keep_io_types=True).SerializeToString())
