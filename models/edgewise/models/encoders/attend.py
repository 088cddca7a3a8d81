"""How an encoder's tokens see each other in its graph: all of them, those near by, or by the distance (MPNet).

Long texts stay cheap: one without padding, from `LONG` tokens on, goes without a mask, and ONNX Runtime then never stores the
scores of all pairs. Tokens that see those near by are computed in blocks, in time and memory that grow with the length only. What
is added to scores is cut from one constant, as far as the text is long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from onnx import TensorProto

from edgewise.models.encoders.nodes import MICROSOFT, Nodes
from edgewise.models.encoders.shape import EncoderShape
from edgewise.models.encoders.weights import BUCKETS, Array

LONG: Final = 1024
"""Tokens of a text from which on it pays to do without the scores of all pairs."""
_UNSEEN: Final = np.float32(-1e9)
"""Added to the score of what is not seen; finite, since rows of padding see nothing."""
_FAR: Final = 128
"""Distance from which on MPNet tells none apart."""


class Attention:
    """Makes the attention of each layer.

    Args:
        graph: To which nodes are added.
        ids, mask: Its inputs [texts, tokens].
        weights: Of the encoder.
    """

    def __init__(self, graph: Nodes, shape: EncoderShape, weights: Mapping[str, Array], *, ids: str, mask: str) -> None:
        self._graph = graph
        self._shape = shape
        self._added = ""
        self._near: _Near | None = None
        self._seen = graph.add("Cast", [mask], "mask.int32", to=TensorProto.INT32)
        windows = {it for it in shape.windows if it}
        self._long = shape.max_tokens > LONG
        if windows or shape.buckets or self._long:
            graph.add("Shape", [ids], "tokens", start=1, end=2)
        if self._long:
            self._tell_long(mask)
        if shape.buckets:
            self._added = self._by_distance(weights[f"{BUCKETS}.weight"])
        if windows:
            (window,) = windows
            self._near = _Near(graph, shape, window, ids=ids, seen=self._seen)

    def layer(self, layer: int, query: str, key: str, value: str) -> str:
        """[texts, tokens, width] of each, in and out."""
        out = f"{layer}.attended"
        if self._shape.thetas:
            query, key = (self._turned(it, self._shape.thetas[layer]) for it in (query, key))
        if self._near is not None and self._shape.windows[layer]:
            return self._near.layer(query, key, value, out)
        masked = [query, key, value, "", self._seen, *([self._added] if self._added else [])]
        if not self._long or self._added:
            return attend(self._graph, self._shape, masked, out)
        return self._graph.choose(
            "text.long",
            lambda name: attend(self._graph, self._shape, [query, key, value], name),
            lambda name: attend(self._graph, self._shape, masked, name),
            out,
        )

    def _turned(self, x: str, theta: float) -> str:
        """Rotary positions (Su et al. 2021): the two halves of a head turned against each other."""
        size = self._shape.width // self._shape.heads
        rates = np.float32(1) / np.float32(theta) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
        angles = np.arange(self._shape.max_tokens, dtype=np.float32)[:, None] * rates
        first = self._graph.constant("rope.first", np.array([0], np.int64))
        cosines = self._graph.constant(f"rope.{theta:g}.cos", np.cos(angles))
        sines = self._graph.constant(f"rope.{theta:g}.sin", np.sin(angles))
        return self._graph.add("RotaryEmbedding", [x, first, cosines, sines], f"{x}.turned", domain=MICROSOFT)

    def _tell_long(self, mask: str) -> None:
        """Whether there is no padding, and the text long."""
        graph = self._graph
        least = graph.add("ReduceMin", [mask], "mask.least", keepdims=0)
        full = graph.add("Equal", [least, graph.constant("whole", np.array(1, np.int64))], "mask.full")
        many = graph.add("Squeeze", ["tokens"], "tokens.many")
        many = graph.add("GreaterOrEqual", [many, graph.constant("long", np.array(LONG, np.int64))], "tokens.long")
        graph.add("And", [full, many], "text.long")

    def _by_distance(self, table: Array) -> str:
        """[1, heads, tokens, tokens] that are added to scores, of MPNet's table [buckets, heads]."""
        places = np.arange(self._shape.max_tokens)
        added = table[buckets(places[None, :] - places[:, None], self._shape.buckets)].transpose(2, 0, 1)
        return _cut(self._graph, self._graph.constant("distances", added[None]))


class _Near:
    """Attention to `window` tokens on each side.

    The tokens are divided into blocks of twice the window. Each sees itself and half a block before and behind: two blocks in a
    row of the same tokens, divided with half a block of padding before them. Texts of at most two blocks are computed as one.
    """

    def __init__(self, graph: Nodes, shape: EncoderShape, window: int, *, ids: str, seen: str) -> None:
        self._graph = graph
        self._shape = shape
        self._seen = seen
        self._block = block = 2 * window
        places = np.arange(2 * block)
        self._short = _cut(graph, graph.constant("near.all", _band(places[:, None] - places[None, :], window)))
        distances = np.arange(block)[:, None] - (np.arange(2 * block)[None, :] - window)
        self._band = graph.constant("near.block", _band(distances, window))
        size = graph.constant("near.size", np.array([block], np.int64))
        # Behind the tokens, so many that blocks are full.
        count = graph.add(
            "Add", ["tokens", graph.constant("near.size.less", np.array([block - 1], np.int64))], "near.up"
        )
        count = graph.add("Mul", [graph.add("Div", [count, size], "near.count"), size], "near.length")
        behind = graph.add("Sub", [count, "tokens"], "near.behind")
        half = graph.constant("near.half", np.array([window], np.int64))
        more = graph.add("Add", [behind, half], "near.behind.more")
        zero = graph.constant("near.zero", np.array([0], np.int64))
        for name, pads in {
            "near.pad.query": [zero, zero, zero, zero, behind, zero],
            "near.pad.key": [zero, half, zero, zero, more, zero],
            "near.pad.seen": [zero, half, zero, more],
        }.items():
            graph.add("Concat", pads, name, axis=0)
        texts = graph.add("Shape", [ids], "near.texts", start=0, end=1)
        width = graph.constant("near.width", np.array([-1, shape.width], np.int64))
        graph.add("Concat", [texts, width], "near.joined", axis=0)
        self._seen_blocks = self._blocks(seen, "near.pad.seen", "near.seen", ())
        many = graph.add("Squeeze", ["tokens"], "near.tokens")
        graph.add("Greater", [many, graph.constant("near.most", np.array(2 * block, np.int64))], "near.long")

    def layer(self, query: str, key: str, value: str, out: str) -> str:
        def whole(name: str) -> str:
            return attend(self._graph, self._shape, [query, key, value, "", self._seen, self._short], name)

        return self._graph.choose("near.long", lambda name: self._in_blocks(query, key, value, name), whole, out)

    def _in_blocks(self, query: str, key: str, value: str, out: str) -> str:
        graph, width = self._graph, (self._shape.width,)
        padded = graph.add("Pad", [query, "near.pad.query"], f"{out}.query.padded")
        rows = graph.constant("near.rows", np.array([-1, self._block, *width], np.int64))
        asked = graph.add("Reshape", [padded, rows], f"{out}.query")
        seen = [
            self._blocks(it, "near.pad.key", f"{out}.{name}", width) for it, name in ((key, "key"), (value, "value"))
        ]
        found = attend(graph, self._shape, [asked, *seen, "", self._seen_blocks, self._band], f"{out}.blocks")
        joined = graph.add("Reshape", [found, "near.joined"], f"{out}.joined")
        return graph.add("Slice", [joined, "near.zero", "tokens", _axis(graph, 1)], out)

    def _blocks(self, x: str, pads: str, out: str, inner: tuple[int, ...]) -> str:
        """[texts, tokens, ...] as [texts * blocks, 2 * block, ...]: what each block sees."""
        graph, block = self._graph, self._block
        padded = graph.add("Pad", [x, pads], f"{out}.padded")
        shape = graph.constant(f"near.split.{len(inner)}", np.array([0, -1, block, *inner], np.int64))
        split = graph.add("Reshape", [padded, shape], f"{out}.split")
        one, last = (
            graph.constant(f"near.{name}", np.array([at], np.int64)) for name, at in (("one", 1), ("last", -1))
        )
        end = graph.constant("near.end", np.array([np.iinfo(np.int64).max], np.int64))
        first = graph.add("Slice", [split, "near.zero", last, _axis(graph, 1)], f"{out}.first")
        second = graph.add("Slice", [split, one, end, _axis(graph, 1)], f"{out}.second")
        both = graph.add("Concat", [first, second], f"{out}.both", axis=2)
        rows = graph.constant(f"near.seen.{len(inner)}", np.array([-1, 2 * block, *inner], np.int64))
        return graph.add("Reshape", [both, rows], out)


def attend(graph: Nodes, shape: EncoderShape, inputs: list[str], out: str) -> str:
    """ONNX Runtime's attention: query, key, value, "", what is seen of the keys, and what is added to scores."""
    return graph.add("MultiHeadAttention", inputs, out, domain=MICROSOFT, num_heads=shape.heads)


def buckets(distances: np.typing.NDArray[np.int64], count: int) -> np.typing.NDArray[np.int64]:
    """Which row of a table stands for how far a key lies behind its query (Raffel et al. 2020, in both directions)."""
    half = count // 2
    exact = half // 2
    far = np.abs(distances)
    with np.errstate(divide="ignore"):
        share = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(np.log(_FAR / exact))
    coarse = np.minimum(exact + np.where(far < exact, 0, share * (half - exact)).astype(np.int64), half - 1)
    found: np.typing.NDArray[np.int64] = np.where(distances > 0, half, 0) + np.where(far < exact, far, coarse)
    return found


def _band(distances: np.typing.NDArray[np.int64], window: int) -> Array:
    """[1, 1, queries, keys] that are added to scores."""
    found: Array = np.where(np.abs(distances) <= window, np.float32(0), _UNSEEN)
    return found[None, None]


def _cut(graph: Nodes, constant: str) -> str:
    """[..., tokens, tokens] of a constant [..., longest, longest]."""
    zeros = graph.constant("cut.zeros", np.array([0, 0], np.int64))
    axes = graph.constant("cut.axes", np.array([2, 3], np.int64))
    ends = graph.add("Concat", ["tokens", "tokens"], f"{constant}.ends", axis=0)
    return graph.add("Slice", [constant, zeros, ends, axes], f"{constant}.cut")


def _axis(graph: Nodes, at: int) -> str:
    return graph.constant(f"axis.{at}", np.array([at], np.int64))
