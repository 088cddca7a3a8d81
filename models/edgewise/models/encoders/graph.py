"""The ONNX graph of a text encoder, made of its weights: ids and mask in, one unit vector for each text out.

Made here rather than by torch's exporter, which needs torch and onnxscript on the device and gives a graph of small operations;
this one uses ONNX Runtime's own attention, and each group of products can have a form of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgewise.models.encoders.calibrate import Calibration, by_block, by_column
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.encoders.weights import Array

Form = Literal["fp32", "static", "blocks"]
"""Of a group of products: float32; 8-bit weights and activations with scales known beforehand (QDQ); or 8-bit weights and
activations by blocks of `BLOCK`, scaled as they come (MatMulNBits)."""

PARTS: Final = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mix": ("attention.output.dense",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
"""The groups of a layer; products of one group read the same input."""
BLOCK: Final = 32
IDS: Final = "ids"
MASK: Final = "mask"
OUT: Final = "vectors"
_OPSET: Final = 21
_IR: Final = 10
MICROSOFT: Final = "com.microsoft"


def groups(shape: EncoderShape) -> tuple[str, ...]:
    """Names of all groups of products: "0.qkv", "0.mix", ..."""
    return tuple(f"{layer}.{part}" for layer in range(shape.layers) for part in PARTS)


def products(group: str) -> tuple[str, ...]:
    """Names in the weights of a group's products, without ".weight"."""
    layer, _, part = group.partition(".")
    return tuple(f"encoder.layer.{layer}.{name}" for name in PARTS[part])


def build_graph(
    shape: EncoderShape,
    weights: Mapping[str, Array],
    forms: Mapping[str, Form] | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
    *,
    taps: bool = False,
) -> onnx.ModelProto:
    """The encoder's model.

    Args:
        forms: Of groups; those that are left out stay float32.
        calibrations: Of the groups whose form is "static".
        taps: Also hand out the input of each group, under the group's name with ".in".
    """
    graph = _Graph(shape, weights, forms or {}, calibrations or {})
    graph.encoder()
    sizes = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in (IDS, MASK)]
    outputs = [helper.make_tensor_value_info(OUT, TensorProto.FLOAT, ["texts", shape.width])]
    if taps:
        outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in graph.taps]
    made = helper.make_graph(graph.nodes, "encoder", sizes, outputs, graph.constants)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR, producer_name="edgewise")


class _Graph:
    """Nodes and constants as they are added; a node is called as its output."""

    def __init__(
        self,
        shape: EncoderShape,
        weights: Mapping[str, Array],
        forms: Mapping[str, Form],
        calibrations: Mapping[str, Calibration],
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.taps: list[str] = []
        self._shape = shape
        self._weights = weights
        self._forms = forms
        self._calibrations = calibrations

    def encoder(self) -> None:
        x = self._embeddings()
        seen = self._add("Cast", [MASK], "mask.int32", to=TensorProto.INT32)
        for layer in range(self._shape.layers):
            x = self._layer(layer, x, seen)
        self._pool(x)

    def _embeddings(self) -> str:
        at = "embeddings."
        words = self._add("Gather", [self._stored(f"{at}word_embeddings.weight"), IDS], "words")
        # Each text begins at the first place; what stands behind a shorter one is masked.
        first = self._shape.first_place
        table = self._weights[f"{at}position_embeddings.weight"][first : first + self._shape.max_tokens]
        segment = self._weights[f"{at}token_type_embeddings.weight"][0]
        self._add("Shape", [IDS], "length", start=1, end=2)
        zero = self._constant("zero", np.array([0], np.int64))
        places = self._add("Slice", [self._constant("places", table + segment), zero, "length", zero], "places.used")
        return self._norm(self._add("Add", [words, places], "embedded"), f"{at}LayerNorm")

    def _layer(self, layer: int, x: str, seen: str) -> str:
        at = f"encoder.layer.{layer}."
        query, key, value = self._group(f"{layer}.qkv", x)
        attended = self._add(
            "MultiHeadAttention",
            [query, key, value, "", seen],
            f"{layer}.attended",
            domain=MICROSOFT,
            num_heads=self._shape.heads,
        )
        (mixed,) = self._group(f"{layer}.mix", attended)
        x = self._norm(self._add("Add", [x, mixed], f"{layer}.middle"), f"{at}attention.output.LayerNorm")
        (up,) = self._group(f"{layer}.up", x)
        (down,) = self._group(f"{layer}.down", self._add("Gelu", [up], f"{layer}.gelu"))
        return self._norm(self._add("Add", [x, down], f"{layer}.end"), f"{at}output.LayerNorm")

    def _pool(self, x: str) -> None:
        """A mean needs no division: the vector is scaled to length one anyhow."""
        one = self._constant("one", np.array([1], np.int64))
        if self._shape.pooling == "cls":
            first = self._add("Slice", [x, "zero", one, one], "pooled.first")
            pooled = self._add("Squeeze", [first, one], "pooled")
        else:
            weight = self._add("Cast", [MASK], "mask.float", to=TensorProto.FLOAT)
            summed = self._add("MatMul", [self._add("Unsqueeze", [weight, one], "mask.row"), x], "pooled.sum")
            pooled = self._add("Squeeze", [summed, one], "pooled")
        self._add("LpNormalization", [pooled], OUT, axis=1, p=2)

    # --- products ------------------------------------------------------------------------------------------------------

    def _group(self, group: str, x: str) -> list[str]:
        names = products(group)
        form = self._forms.get(group, "fp32")
        tap = f"{group}.in"
        self.taps.append(self._add("Identity", [x], tap) if form == "fp32" else tap)
        if form == "static":
            return self._static(group, x, names)
        return [(self._blocks if form == "blocks" else self._float)(name, x) for name in names]

    def _float(self, name: str, x: str) -> str:
        weight = self._constant(f"{name}.weight", self._columns(name))
        return self._biased(name, self._add("MatMul", [x, weight], f"{name}.product"))

    def _static(self, group: str, x: str, names: Sequence[str]) -> list[str]:
        found = self._calibrations[group]
        evened = self._add("Mul", [x, self._constant(f"{group}.even", 1 / found.smooth)], f"{group}.evened")
        scale, zero = self._constant(f"{group}.scale", found.scale), self._constant(f"{group}.zero", found.zero)
        stored = self._add("QuantizeLinear", [evened, scale, zero], f"{group}.stored")
        read = self._add("DequantizeLinear", [stored, scale, zero], f"{group}.read")
        made = []
        for name, shift in zip(names, found.shifts, strict=True):
            values, scales = by_column(self._columns(name) * found.smooth[:, None])
            inputs = [
                self._constant(f"{name}.values", values),
                self._constant(f"{name}.scales", scales),
                self._constant(f"{name}.zeros", np.zeros(scales.shape, np.int8)),
            ]
            weight = self._add("DequantizeLinear", inputs, f"{name}.weight", axis=1)
            made.append(self._biased(name, self._add("MatMul", [read, weight], f"{name}.product"), shift))
        return made

    def _blocks(self, name: str, x: str) -> str:
        weight = self._columns(name)
        values, scales = by_block(weight, BLOCK)
        inputs = [x, self._constant(f"{name}.values", values), self._constant(f"{name}.scales", scales)]
        sizes = {"K": weight.shape[0], "N": weight.shape[1], "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self._biased(name, self._add("MatMulNBits", inputs, f"{name}.product", domain=MICROSOFT, **sizes))

    def _biased(self, name: str, x: str, shift: Array | None = None) -> str:
        bias = self._weights[f"{name}.bias"]
        return self._add(
            "Add", [x, self._constant(f"{name}.bias", bias if shift is None else bias - shift)], f"{name}.out"
        )

    def _columns(self, name: str) -> Array:
        """[in, out]."""
        weight: Array = self._weights[f"{name}.weight"].T
        return weight

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _norm(self, x: str, name: str) -> str:
        inputs = [x, self._stored(f"{name}.weight"), self._stored(f"{name}.bias")]
        return self._add("LayerNormalization", inputs, f"{name}.out", axis=-1, epsilon=self._shape.eps)

    def _stored(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name

    def _add(self, op: str, inputs: list[str], out: str, *, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [out], name=out, domain=domain, **attributes))
        return out
