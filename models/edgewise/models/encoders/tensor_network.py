"""An encoder of one tensor, say pictures or sound, as the ladder sees it: its float32 graph, and 8-bit forms of its products.

Static 8 bits are made by ONNX Runtime's own quantizer (QDQ: per-channel weights, ranges of activations from real inputs); blocks
are MatMulNBits, as in `graph`.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from edgewise.models.encoders.calibrate import by_block
from edgewise.models.encoders.graph import BLOCK
from edgewise.models.encoders.network import Session
from edgewise.models.encoders.nodes import MICROSOFT
from edgewise.models.encoders.record import Judge
from edgewise.models.encoders.weights import Array
from edgewise.models.onnx_session import open_quiet

_PRODUCTS: Final = ("Conv", "Gemm", "MatMul")
_ALONG: Final = ("Add", "Clip", "Relu", "GlobalAveragePool", "Flatten", "MaxPool")
"""Between products in 8 bits these compute in 8 bits too: they only pass numbers on."""
_STATIC, _BLOCKS = "static", "blocks"
MANY: Final = 8
"""Inputs of the larger timing."""
_AT_ONCE: Final = 2
"""Inputs of the calibration whose activations are held at once."""


class TensorSession:
    """A graph of one input and one output; implements `network.Session` for inputs of one form.

    Args:
        model: The graph's bytes, or the file that holds them.
        threads: That compute one call together.
    """

    def __init__(self, model: bytes | Path, threads: int) -> None:
        self._session = open_quiet(model, threads)
        (self._input,) = (one.name for one in self._session.get_inputs())

    def run(self, inputs: Sequence[Array]) -> Array:
        """`inputs` are of one shape [1, ...]."""
        return self(np.concatenate(inputs))

    def __call__(self, batch: Array) -> Array:
        """[n, ...] in and out."""
        output: Array = self._session.run(None, {self._input: batch})[0]
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Real inputs [1, ...] of one shape, those of the calibration first; the gate reads others."""

    calibration: Sequence[Array]
    judged: Sequence[Array]


class TensorNetwork:
    """Implements `network.Network` for a float32 graph.

    Args:
        graph: An ONNX model of one input and one output, whose first axis counts inputs.
        samples: Real inputs.
        gate: Least cosine to float32.
        threads: As the encoder will run.
        many: Inputs of the larger timing.
        parts: In so many at most, each judged alone, it is divided for the mixture.
        objects: As of `network.Objects`.

    Attributes:
        judge: As of `network.Judged`.
    """

    def __init__(
        self,
        graph: bytes,
        samples: Samples,
        *,
        gate: float,
        threads: int,
        many: int = MANY,
        parts: int = 25,
        objects: Callable[[Session], str] | None = None,
    ) -> None:
        self.judged: Sequence[Array] = samples.judged
        self.gate = gate
        self.many = many
        self._samples = samples
        self._threads = threads
        self._model = _named(onnx.load_from_string(graph))
        self._work = _work(self._model)
        self.groups = tuple(self._work)
        self.units = _parts(self.groups, parts)
        self.wholes = {"int8-static": _STATIC}
        self.absent: dict[str, str] = {}
        blocked = [name for name in self.groups if _blockable(self._model, name)]
        if blocked:
            self.wholes["int8-blocks"] = _BLOCKS
        else:
            self.absent["int8-blocks"] = f"no product is a matrix whose rows are a multiple of {BLOCK}"
        self._ranges: Any = None
        self._objects = objects
        self.judge: Judge | None = None

    def objection(self, session: Session) -> str:
        """See `network.Objects`."""
        return "" if self._objects is None else self._objects(session)

    def calibrate(self) -> None:
        with tempfile.TemporaryDirectory(prefix="edgewise-calibrate-") as folder:
            plain = Path(folder) / "plain.onnx"
            onnx.save(self._model, plain)
            calibrator = create_calibrator(
                plain,
                [*_PRODUCTS, *_ALONG],
                augmented_model_path=str(Path(folder) / "augmented.onnx"),
                calibrate_method=CalibrationMethod.Percentile,
            )
            name, inputs = self._model.graph.input[0].name, self._samples.calibration
            with redirect_stdout(io.StringIO()):  # it prints
                for at in range(0, len(inputs), _AT_ONCE):  # it keeps what it has not counted
                    calibrator.collect_data(_Reader(name, inputs[at : at + _AT_ONCE]))
                self._ranges = calibrator.compute_data()

    def size(self, group: str) -> float:
        return self._work[group]

    def build(self, forms: Mapping[str, str]) -> bytes:
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        _to_blocks(model, [name for name, form in forms.items() if form == _BLOCKS])
        static = [name for name, form in forms.items() if form == _STATIC]
        if static:
            model = self._static(model, static)
        return bytes(model.SerializeToString())

    def open(self, model: bytes | Path) -> TensorSession:
        return TensorSession(model, self._threads)

    def _static(self, model: onnx.ModelProto, products: Sequence[str]) -> onnx.ModelProto:
        quantizer = QDQQuantizer(
            model,
            True,  # weights by channel
            False,
            QuantType.QInt8,
            QuantType.QUInt8,
            self._ranges,
            _with_followers(model, products),
            [],
            [*_PRODUCTS, *_ALONG],
            {},
        )
        quantizer.quantize_model()
        made: onnx.ModelProto = quantizer.model.model
        return made


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, inputs: Sequence[Array]) -> None:
        self._fed: Iterator[dict[str, Array]] = iter([{name: one} for one in inputs])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._fed, None)


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """With shapes, and a name for each node."""
    model = onnx.shape_inference.infer_shapes(model)
    for at, node in enumerate(model.graph.node):
        node.name = f"{at}.{node.op_type}"
    return model


def _work(model: onnx.ModelProto) -> dict[str, float]:
    """Multiplications of each product with constant weights, in order, for one input."""
    constants = {it.name: it for it in model.graph.initializer}
    places = {it.name: it.type.tensor_type.shape.dim for it in model.graph.value_info}
    found = {}
    for node in model.graph.node:
        if node.op_type in _PRODUCTS and node.input[1] in constants:
            area = [it.dim_value or 1 for it in places.get(node.output[0], ())][1:]
            spread = area[1:] if node.op_type == "Conv" else area[:-1]
            found[node.name] = float(np.prod(constants[node.input[1]].dims) * np.prod(spread or [1]))
    return found


def _parts(groups: Sequence[str], count: int) -> list[Sequence[str]]:
    step = -(-len(groups) // count)
    return [groups[first : first + step] for first in range(0, len(groups), step)]


def _with_followers(model: onnx.ModelProto, products: Sequence[str]) -> list[str]:
    """The products, and what stands between them."""
    made_by = {out: node for node in model.graph.node for out in node.output}
    chosen = set(products)
    for node in model.graph.node:
        sources = [made_by[it].name for it in node.input if it in made_by]
        if node.op_type in _ALONG and sources and all(it in chosen for it in sources):
            chosen.add(node.name)
    return sorted(chosen)


def _blockable(model: onnx.ModelProto, name: str) -> bool:
    node = next(it for it in model.graph.node if it.name == name)
    dims = next(it.dims for it in model.graph.initializer if it.name == node.input[1])
    return node.op_type == "MatMul" and len(dims) == 2 and dims[0] % BLOCK == 0


def _to_blocks(model: onnx.ModelProto, products: Sequence[str]) -> None:
    """In place; what cannot be stored in blocks stays as it is."""
    for node in model.graph.node:
        if node.name not in products or not _blockable(model, node.name):
            continue
        (stored,) = (it for it in model.graph.initializer if it.name == node.input[1])
        weight = numpy_helper.to_array(stored)
        values, scales = by_block(weight, BLOCK)
        names = [f"{node.name}.values", f"{node.name}.scales"]
        model.graph.initializer.extend(
            [numpy_helper.from_array(values, names[0]), numpy_helper.from_array(scales, names[1])]
        )
        sizes = {"K": weight.shape[0], "N": weight.shape[1], "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        made = helper.make_node(
            "MatMulNBits", [node.input[0], *names], list(node.output), name=node.name, domain=MICROSOFT, **sizes
        )
        node.CopyFrom(made)
    used = {name for node in model.graph.node for name in node.input}
    kept = [it for it in model.graph.initializer if it.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    if products and not any(it.domain == MICROSOFT for it in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
