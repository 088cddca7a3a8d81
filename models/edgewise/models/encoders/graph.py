"""The ONNX graph of a text encoder, made of its weights: ids and mask in, one unit vector for each text out.

Made here rather than by torch's exporter, which needs torch and onnxscript on the device and gives a graph of small operations;
this one uses ONNX Runtime's own attention, and each group of products can have a form of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgewise.models.encoders.attend import Attention
from edgewise.models.encoders.calibrate import Calibration, by_block, by_column
from edgewise.models.encoders.nodes import MICROSOFT, Nodes
from edgewise.models.encoders.shape import EncoderShape, Head
from edgewise.models.encoders.weights import PLACES, SEGMENTS, WORDS, Array

Form = Literal["fp32", "static", "blocks"]
"""Of a group of products: float32; 8-bit weights and activations with scales known beforehand (QDQ); or 8-bit weights and
activations by blocks of `BLOCK`, scaled as they come (MatMulNBits)."""

PARTS: Final = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mix": ("attention.output.dense",),
    "up": ("intermediate.dense", "intermediate.gate"),
    "down": ("output.dense",),
}
"""The groups of a layer; products of one group read the same input. Not every family has a gate."""
BLOCK: Final = 32
IDS: Final = "ids"
MASK: Final = "mask"
TYPES: Final = "types"
"""Of a cross-encoder: 1 for tokens of the second text of a pair."""
OUT: Final = "vectors"
_OPSET: Final = 21
_IR: Final = 10


def groups(shape: EncoderShape) -> tuple[str, ...]:
    """Names of all groups of products: "0.qkv", "0.mix", ..."""
    return tuple(f"{layer}.{part}" for layer in range(shape.layers) for part in PARTS)


def products(shape: EncoderShape, group: str) -> tuple[str, ...]:
    """Names in the weights of a group's products, without ".weight"."""
    layer, _, part = group.partition(".")
    return tuple(f"encoder.layer.{layer}.{it}" for it in PARTS[part] if shape.gated or it != "intermediate.gate")


def build_graph(
    shape: EncoderShape,
    weights: Mapping[str, Array],
    forms: Mapping[str, Form] | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
    *,
    taps: bool = False,
    given: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """The encoder's model: unit vectors, or of a cross-encoder the number before its scale.

    Args:
        forms: Of groups; those that are left out stay float32.
        calibrations: Of the groups whose form is "static".
        taps: Also hand out the input of each group, under the group's name with ".in".
        given: Takes all large constants, which the session is given when the graph is opened. Where it is None, the graph has
            them, save for the table of words of a `shape.given`.
    """
    graph = _Graph(shape, weights, forms or {}, calibrations or {}, given)
    graph.encoder()
    names = (IDS, MASK) if shape.head is None else (IDS, MASK, TYPES)
    sizes = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in names]
    outputs = [helper.make_tensor_value_info(OUT, TensorProto.FLOAT, ["texts", shape.numbers])]
    if taps:
        outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in graph.taps]
    made = helper.make_graph(graph.nodes, "encoder", sizes, outputs, graph.constants)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR, producer_name="edgewise")


class _Graph(Nodes):
    def __init__(
        self,
        shape: EncoderShape,
        weights: Mapping[str, Array],
        forms: Mapping[str, Form],
        calibrations: Mapping[str, Calibration],
        given: dict[str, Array] | None,
    ) -> None:
        super().__init__(given)
        self.taps: list[str] = []
        self._shape = shape
        self._weights = weights
        self._forms = forms
        self._calibrations = calibrations
        self._attention = Attention(self, shape, weights, ids=IDS, mask=MASK)

    def encoder(self) -> None:
        x = self._embeddings()
        for layer in range(self._shape.layers):
            x = self._layer(layer, x)
        pooled = self._pool(self._norm(x, "final.LayerNorm") if self._shape.norm_first else x)
        if self._shape.head is None:
            self.add("LpNormalization", [pooled], OUT, axis=1, p=2)
        else:
            self._score(pooled, self._shape.head)

    def _embeddings(self) -> str:
        at = "embeddings."
        words = self._weights[WORDS]
        apart = self._shape.given and self._given is None
        table = self.outside(WORDS, words) if apart else self._stored(WORDS)
        x = self.add("Gather", [table, IDS], "words")
        segments = self._weights.get(f"{SEGMENTS}.weight")
        second = segments is not None and self._shape.head is not None
        if f"{PLACES}.weight" in self._weights:
            # Each text begins at the first place; what stands behind a shorter one is masked.
            first = self._shape.first_place
            rows = self._weights[f"{PLACES}.weight"][first : first + self._shape.max_tokens]
            if segments is not None and not second:
                rows = rows + segments[0]
            self.add("Shape", [IDS], "length", start=1, end=2)
            zero = self.constant("zero", np.array([0], np.int64))
            places = self.add("Slice", [self.constant("places", rows), zero, "length", zero], "places.used")
            x = self.add("Add", [x, places], "embedded")
        elif segments is not None and not second:
            x = self.add("Add", [x, self.constant("segment", segments[0])], "embedded")
        if segments is not None and second:
            # Models of one segment have no row for a second text.
            row = self.add(
                "Min", [TYPES, self.constant("segments", np.array(len(segments) - 1, np.int64))], "types.known"
            )
            x = self.add("Add", [x, self.add("Gather", [self._stored(f"{SEGMENTS}.weight"), row], "segment")], "placed")
        return self._norm(x, f"{at}LayerNorm")

    def _layer(self, layer: int, x: str) -> str:
        """Norms stand before attention and products, or behind the sums."""
        at, before = f"encoder.layer.{layer}.", self._shape.norm_first
        first, second = f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"
        mixed = self._mix(layer, self._norm(x, first) if before else x)
        x = self.add("Add", [x, mixed], f"{layer}.middle")
        x = x if before else self._norm(x, first)
        down = self._through(layer, self._norm(x, second) if before else x)
        x = self.add("Add", [x, down], f"{layer}.end")
        return x if before else self._norm(x, second)

    def _mix(self, layer: int, x: str) -> str:
        query, key, value = self._group(f"{layer}.qkv", x)
        (mixed,) = self._group(f"{layer}.mix", self._attention.layer(layer, query, key, value))
        return mixed

    def _through(self, layer: int, x: str) -> str:
        up, *gate = self._group(f"{layer}.up", x)
        if self._shape.activation == "gelu":
            active = self.add("Gelu", [up], f"{layer}.gelu")
        else:
            active = self.add("Mul", [up, self.add("Sigmoid", [up], f"{layer}.sigmoid")], f"{layer}.silu")
        if gate:
            active = self.add("Mul", [active, *gate], f"{layer}.gated")
        (down,) = self._group(f"{layer}.down", active)
        return down

    def _pool(self, x: str) -> str:
        """A mean of a sentence needs no division: the vector is scaled to length one anyhow."""
        one = self.constant("one", np.array([1], np.int64))
        if self._shape.pooling == "cls":
            zero = self.constant("zero", np.array([0], np.int64))
            first = self.add("Slice", [x, zero, one, one], "pooled.first")
            return self.add("Squeeze", [first, one], "pooled")
        weight = self.add("Cast", [MASK], "mask.float", to=TensorProto.FLOAT)
        summed = self.add("MatMul", [self.add("Unsqueeze", [weight, one], "mask.row"), x], "pooled.sum")
        pooled = self.add("Squeeze", [summed, one], "pooled")
        if self._shape.head is None:
            return pooled
        return self.add("Div", [pooled, self.add("ReduceSum", [weight, one], "mask.sum", keepdims=1)], "pooled.mean")

    def _score(self, x: str, head: Head) -> None:
        x = self._float("head.dense", x)
        x = self.add({"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}[head.activation], [x], "head.active")
        x = self._norm(x, "head.norm") if head.normed else x
        self.add("Identity", [self._float("head.out", x)], OUT)

    # --- products ------------------------------------------------------------------------------------------------------

    def _group(self, group: str, x: str) -> list[str]:
        names = products(self._shape, group)
        form = self._forms.get(group, "fp32")
        tap = f"{group}.in"
        self.taps.append(self.add("Identity", [x], tap) if form == "fp32" else tap)
        if form == "static":
            return self._static(group, x, names)
        return [(self._blocks if form == "blocks" else self._float)(name, x) for name in names]

    def _float(self, name: str, x: str) -> str:
        weight = self.constant(f"{name}.weight", self._columns(name))
        return self._biased(name, self.add("MatMul", [x, weight], f"{name}.product"))

    def _static(self, group: str, x: str, names: Sequence[str]) -> list[str]:
        found = self._calibrations[group]
        evened = self.add("Mul", [x, self.constant(f"{group}.even", 1 / found.smooth)], f"{group}.evened")
        scale, zero = self.constant(f"{group}.scale", found.scale), self.constant(f"{group}.zero", found.zero)
        stored = self.add("QuantizeLinear", [evened, scale, zero], f"{group}.stored")
        read = self.add("DequantizeLinear", [stored, scale, zero], f"{group}.read")
        made = []
        for name, shift in zip(names, found.shifts, strict=True):
            values, scales = by_column(self._columns(name) * found.smooth[:, None])
            inputs = [
                self.constant(f"{name}.values", values),
                self.constant(f"{name}.scales", scales),
                self.constant(f"{name}.zeros", np.zeros(scales.shape, np.int8)),
            ]
            weight = self.add("DequantizeLinear", inputs, f"{name}.weight", axis=1)
            made.append(self._biased(name, self.add("MatMul", [read, weight], f"{name}.product"), shift))
        return made

    def _blocks(self, name: str, x: str) -> str:
        weight = self._columns(name)
        values, scales = by_block(weight, BLOCK)
        inputs = [x, self.constant(f"{name}.values", values), self.constant(f"{name}.scales", scales)]
        sizes = {"K": weight.shape[0], "N": weight.shape[1], "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self._biased(name, self.add("MatMulNBits", inputs, f"{name}.product", domain=MICROSOFT, **sizes))

    def _biased(self, name: str, x: str, shift: Array | None = None) -> str:
        bias = self._weights.get(f"{name}.bias")
        if bias is None and shift is None:
            return x
        shifted = bias if shift is None else -shift if bias is None else bias - shift
        return self.add("Add", [x, self.constant(f"{name}.bias", shifted)], f"{name}.out")

    def _columns(self, name: str) -> Array:
        """[in, out]."""
        weight: Array = self._weights[f"{name}.weight"].T
        return weight

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _norm(self, x: str, name: str) -> str:
        """Without weights where the family has none there: what comes is normed already."""
        if f"{name}.weight" not in self._weights:
            return x
        inputs = [x, *(self._stored(it) for it in (f"{name}.weight", f"{name}.bias") if it in self._weights)]
        return self.add("LayerNormalization", inputs, f"{name}.out", axis=-1, epsilon=self._shape.eps)

    def _stored(self, name: str) -> str:
        return self.constant(name, self._weights[name])
