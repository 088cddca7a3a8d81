"""Which stored tensor goes where in a decoder's fused tensors, whole or cut for one of several devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.names import Names
from edgewise.models.decoder.parallel import Place
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Each head's first `rotary` of `head` rows lie in pairs in the file, in halves in the decoder."""

    head: int
    rotary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A part of a stored tensor and the view of the decoder's that takes it.

    Attributes:
        name: In the file.
        out: As many dimensions as the stored tensor; contiguous.
        shape: Of the stored tensor.
        start: Where `out` begins in it, per dimension.
        pairs: If the rows of heads must be brought from pairs to halves.
        offset: Added to the stored values.
        copies: Further views that take the same values.
    """

    name: str
    out: torch.Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]
    pairs: Pairs | None = None
    offset: float = 0.0
    copies: tuple[torch.Tensor, ...] = ()


def targets(config: DecoderConfig, parameters: DecoderParameters, names: Names, parallel: Place) -> Iterator[Target]:
    """All tensors that the file must hold, in the order of layers.

    Args:
        config: Of one device: `DecoderConfig.shard` of the model's.
        parameters: Of that device.
    """
    layout = _Layout(config, names, parallel.rank)
    yield layout.vocabulary(names.parts["embedding"], parameters.embedding)
    for index, layer in enumerate(parameters.layers):
        prefix = names.layer.format(index)
        for target in layout.layer(layer):
            yield replace(target, name=prefix + target.name)
    yield layout.norm("norm", parameters.norm)
    if not config.tied_embeddings:
        yield layout.vocabulary(names.head, parameters.head)


@dataclass(frozen=True, slots=True)
class _Cut:
    """`rows` of a device, which are the `index`-th of `shares` that a part of a stored tensor consists of."""

    rows: int
    index: int
    shares: int


class _Layout:
    """Names of targets are relative to their layer's prefix."""

    def __init__(self, config: DecoderConfig, names: Names, rank: int) -> None:
        self._config = config
        self._names = names
        self._parts = names.parts
        self._rank, self._size = rank, config.devices

    def vocabulary(self, name: str, out: torch.Tensor) -> Target:
        """This device's rows of a table of tokens; the last devices have fewer where the vocabulary cannot be divided."""
        first = min(self._rank * out.shape[0], self._config.vocab_size)
        own = out[: self._config.vocab_size - first]
        return Target(name=name, out=own, shape=(self._config.vocab_size, *out.shape[1:]), start=(first, 0))

    def whole(self, part: str, out: torch.Tensor) -> Target:
        return Target(name=self._parts[part], out=out, shape=tuple(out.shape), start=(0,) * out.dim())

    def norm(self, part: str, out: torch.Tensor) -> Target:
        return replace(self.whole(part, out), offset=self._names.norm_offset)

    def layer(self, layer: LayerParameters) -> Iterator[Target]:
        yield self.norm("attention_norm", layer.attention_norm)
        yield from self._qkv(layer)
        if layer.qk_norm is not None:
            yield from self._qk_norms(layer.qk_norm)
        yield self._columns(self._parts["output"] + "weight", layer.output)
        if layer.output_bias is not None:
            yield self._bias("output", layer.output_bias)
        if layer.attention_post_norm is not None:
            yield self.norm("attention_post_norm", layer.attention_post_norm)
        yield self.norm("ffn_norm", layer.ffn_norm)
        yield from self._feed_forward(layer) if layer.router is None else self._experts(layer, layer.router)
        if layer.ffn_post_norm is not None:
            yield self.norm("ffn_post_norm", layer.ffn_post_norm)

    def _qkv(self, layer: LayerParameters) -> Iterator[Target]:
        config = self._config
        pairs = Pairs(head=config.head_dim, rotary=config.rotary_dim) if self._names.paired else None
        queries = self._cut(config.num_heads * config.head_dim)
        keys = self._cut(config.num_kv_heads * config.head_dim, replicas=config.kv_replicas)
        cuts = {"q": queries, "k": keys, "v": keys}
        for target, part in self._fused("qkv", cuts, layer.qkv, layer.qkv_bias):
            yield target if part == "v" else replace(target, pairs=pairs)

    def _qk_norms(self, weights: torch.Tensor) -> Iterator[Target]:
        rows, queries = list(weights), self._config.num_heads
        for part, own in (("q_norm", rows[:queries]), ("k_norm", rows[queries:])):
            yield replace(self.norm(part, own[0]), copies=tuple(own[1:]))

    def _feed_forward(self, layer: LayerParameters) -> Iterator[Target]:
        cuts = dict.fromkeys(("gate", "up"), self._cut(self._config.ffn_size))
        for target, _ in self._fused("gate_up", cuts, layer.gate_up, layer.gate_up_bias):
            yield target
        yield self._columns(self._parts["down"] + "weight", layer.down)
        if layer.down_bias is not None:
            yield self._bias("down", layer.down_bias)

    def _experts(self, layer: LayerParameters, router: torch.Tensor) -> Iterator[Target]:
        yield self.whole("router", router)
        inner = layer.down.shape[2]
        for expert in range(layer.down.shape[0]):
            gate, up = layer.gate_up[expert, :inner], layer.gate_up[expert, inner:]
            for part, out in (("expert_gate", gate), ("expert_up", up)):
                yield self._of_expert(self._rows(self._parts[part].format(expert), out, self._cut(inner)), expert)
            down = self._columns(self._parts["expert_down"].format(expert), layer.down[expert])
            yield self._of_expert(down, expert)

    def _of_expert(self, target: Target, expert: int) -> Target:
        if not self._names.stacked:
            return target
        count = self._config.experts.count if self._config.experts else 0
        return replace(target, out=target.out.unsqueeze(0), shape=(count, *target.shape), start=(expert, *target.start))

    def _cut(self, rows: int, replicas: int = 1) -> _Cut:
        """Of a part of which every device, or every `replicas` of them together, has `rows` of its own."""
        return _Cut(rows, self._rank // replicas, self._size // replicas)

    def _fused(
        self, fused: str, cuts: dict[str, _Cut], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Iterator[tuple[Target, str]]:
        """Parts that lie one after the other in the decoder's tensor, and in the file if it has the fused name."""
        total = sum(cut.rows * cut.shares for cut in cuts.values())
        stem = self._parts.get(fused)
        first = before = 0
        for part, cut in cuts.items():
            rows = slice(first, first + cut.rows)
            for kind, tensor in (("weight", weight), ("bias", bias)):
                if tensor is None:
                    continue
                if stem is None:
                    yield self._rows(self._parts[part] + kind, tensor[rows], cut), part
                else:
                    yield self._rows(stem + kind, tensor[rows], cut, before=before, total=total), part
            first += cut.rows
            before += cut.rows * cut.shares

    def _rows(self, name: str, out: torch.Tensor, cut: _Cut, before: int = 0, total: int | None = None) -> Target:
        """This device's share of a part that begins at row `before` of a tensor of `total` rows."""
        rest = tuple(out.shape[1:])
        shape = (total if total is not None else cut.rows * cut.shares, *rest)
        return Target(name=name, out=out, shape=shape, start=(before + cut.index * cut.rows, *(0 for _ in rest)))

    def _columns(self, name: str, out: torch.Tensor) -> Target:
        rows, columns = out.shape
        return Target(name=name, out=out, shape=(rows, columns * self._size), start=(0, self._rank * columns))

    def _bias(self, part: str, out: torch.Tensor) -> Target:
        return Target(name=self._parts[part] + "bias", out=out, shape=tuple(out.shape), start=(0,))
