"""Load a decoder for the native kernels: rows go from the file straight into packed matrices, a few MiB at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from edgewise.core.errors import BadModelFile
from edgewise.kernels.native.formats import PANEL_ROWS
from edgewise.kernels.native.packed import PackedMatrix, alternate, can_pack_blocks
from edgewise.kernels.native.step import DecoderStep, StepLayer, StepShape
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.layout import Target, targets
from edgewise.models.decoder.loading import (
    ProgressSink,
    check_tensors,
    check_tied,
    copy_halves,
    fill_target,
    load_rope_tables,
    read_rows,
)
from edgewise.models.decoder.names import names_of
from edgewise.models.decoder.native.formats import (
    LayerPlan,
    MatrixPlan,
    Quantize,
    layer_plans,
    table_plans,
)
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.decoder.parallel import ALONE
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters, allocate
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import RawReader, WeightReader

_CHUNK_BYTES = 1 << 20  # of rows as float32; a few copies of them are made on the way
_ALIGNMENT = 64
_CPU, _META = torch.device("cpu"), torch.device("meta")


def load_native(
    files: ModelFiles,
    *,
    dtype: str,
    quantize: Quantize,
    progress: ProgressSink | None = None,
    config: DecoderConfig | None = None,
) -> NativeDecoder:
    """Load a model; at the peak 1.15 x its resident bytes are used at most.

    Args:
        files: Where it lies.
        dtype: float32 or bfloat16, of matrices that are not quantized.
        quantize: How matrices are packed: `models.decoder.native.formats`.
        progress: Called with the share done, from 0 to 1.
        config: What `read_config` says of the files, where it has been read already.

    Raises:
        UnsupportedModel: Another architecture, or a feature that is not implemented, by name.
        BadModelFile: A file is damaged, or a tensor is missing, left over, of another shape, or cannot be packed, by name.
        StorageError: A file cannot be read.
        NativeUnavailable: The library is missing.
    """
    config = config or read_config(files)
    with closing(open_weights(files)) as reader:
        return fill_native(config, reader, files, dtype=dtype, quantize=quantize, progress=progress)


def fill_native(
    config: DecoderConfig,
    reader: WeightReader,
    files: ModelFiles,
    *,
    dtype: str,
    quantize: Quantize,
    progress: ProgressSink | None = None,
    other: re.Pattern[str] | None = None,
) -> NativeDecoder:
    """`load_native` from an open reader, which stays open; tensors with `other` names belong to other parts of the model."""
    stored = [name for name in reader.tensors if other is None or not other.fullmatch(name)]
    names = names_of(config, files.format, stored, nested=other is not None)
    check_tensors(config, stored, reader, files, names, ALONE)
    vectors = allocate(config, torch.float32, _CPU, matrices_on=_META)
    wanted = list(targets(config, vectors, names, ALONE))
    for target in wanted:
        if not target.out.is_meta:
            for _ in fill_target(target, reader):
                pass
    check_tied(config, reader, files, names, torch.float32)
    plans, tables = list(layer_plans(config, dtype, quantize)), table_plans(config, dtype, quantize)
    total = sum(plan.nbytes for plan in plans) + sum(plan.nbytes for plan in tables)
    packer = _Packer(reader, files, [target for target in wanted if target.out.is_meta], _room(total), progress)
    step = _step(config, vectors, packer, plans, tables, reader)
    return NativeDecoder(config, step, quantize)


def _step(
    config: DecoderConfig,
    vectors: DecoderParameters,
    packer: _Packer,
    plans: Sequence[LayerPlan],
    tables: Sequence[MatrixPlan],
    reader: WeightReader,
) -> DecoderStep:
    embedding = packer.stacked(tables[0], vectors.embedding)
    head = embedding if config.tied_embeddings else packer.stacked(tables[1], vectors.head)
    ropes = load_rope_tables(config, reader, _CPU)
    numbers = {rope: number for number, rope in enumerate(ropes)}
    layers = []
    for index, (layer, plan) in enumerate(zip(vectors.layers, plans, strict=True)):
        rope = config.rope_of(index)
        number = None if rope is None else numbers[rope]
        layers.append(_layer(layer, plan, packer, number, config.windows[index]))
    experts = config.experts
    shape = StepShape(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        ffn=config.ffn_size,
        vocab=config.vocab_size,
        eps=config.rms_eps,
        attention_scale=config.attention_scale,
        attention_softcap=config.attention_softcap,
        logit_softcap=config.logit_softcap,
        embedding_scale=config.embedding_scale,
        gelu=config.activation == "gelu_tanh",
        experts=0 if experts is None else experts.count,
        per_token=0 if experts is None else experts.per_token,
        expert_ffn=0 if experts is None else experts.ffn_size,
        normalised=experts is not None and experts.normalised,
    )
    return DecoderStep(shape, layers, list(ropes.values()), embedding=embedding, head=head, norm=vectors.norm)


def _layer(layer: LayerParameters, plan: LayerPlan, packer: _Packer, rope: int | None, window: int | None) -> StepLayer:
    qkv = packer.apart(plan.qkv, layer.qkv)
    biases: tuple[torch.Tensor, ...] = ()
    if layer.qkv_bias is not None:
        ends = list(accumulate(one.rows for one in plan.qkv))
        biases = tuple(layer.qkv_bias[end - one.rows : end] for one, end in zip(plan.qkv, ends, strict=True))
    return StepLayer(
        attention_norm=layer.attention_norm,
        attention_post_norm=layer.attention_post_norm,
        ffn_norm=layer.ffn_norm,
        ffn_post_norm=layer.ffn_post_norm,
        qk_norm=layer.qk_norm,
        qkv=qkv,
        qkv_bias=biases,
        output=packer.stacked(plan.output, layer.output),
        output_bias=layer.output_bias,
        feed=packer.feed(plan, layer.gate_up, layer.down),
        gate_up_bias=None if layer.gate_up_bias is None else alternate(*layer.gate_up_bias.chunk(2)),
        down_bias=layer.down_bias,
        router=None if plan.router is None or layer.router is None else packer.stacked(plan.router, layer.router),
        rope=rope,
        window=window,
    )


@dataclass(slots=True)
class _Packer:
    """Packs matrices of which `targets` say where their rows are stored. A matrix of the decoder is named by its shape without
    memory (`allocate` with matrices on "meta"), of which targets are views."""

    reader: WeightReader
    files: ModelFiles
    targets: Sequence[Target]
    room: torch.Tensor  # [bytes of all matrices] uint8
    progress: ProgressSink | None
    done: int = 0

    def stacked(self, plan: MatrixPlan, matrix: torch.Tensor) -> PackedMatrix:
        """The parts one after the other."""
        return self._stack(plan, self._parts(matrix))

    def apart(self, plans: Sequence[MatrixPlan], matrix: torch.Tensor) -> tuple[PackedMatrix, ...]:
        """The parts in one packed matrix, or each in its own."""
        parts = self._parts(matrix)
        if len(plans) == 1:
            return (self._stack(plans[0], parts),)
        return tuple(self._stack(plan, [part]) for plan, part in zip(plans, parts, strict=True))

    def feed(
        self, plan: LayerPlan, gate_up: torch.Tensor, down: torch.Tensor
    ) -> tuple[tuple[PackedMatrix, PackedMatrix], ...]:
        """gate_up and down, or those of each expert."""
        sides, ends = self._parts(gate_up), self._parts(down)
        if len(ends) == 1:
            return ((self._alternate(plan.gate_up, *sides), self._stack(plan.down, ends)),)
        pairs = zip(sides[::2], sides[1::2], ends, strict=True)
        return tuple(
            (self._alternate(plan.gate_up, gate, up), self._stack(plan.down, [end])) for gate, up, end in pairs
        )

    def _alternate(self, plan: MatrixPlan, gate: Target, up: Target) -> PackedMatrix:
        """Two parts, by panels in turn."""
        packed = self._take(plan)
        raw = self._is_raw(gate, plan) and self._is_raw(up, plan) and self._kind(gate) == self._kind(up)
        for first, count in _chunks(gate, plan.cols):
            rows = [self._rows(part, first, count, raw=raw) for part in (gate, up)]
            self._pack(packed, 2 * first, alternate(*rows), gate, raw=raw)
        self._report()
        return packed

    def _stack(self, plan: MatrixPlan, parts: Sequence[Target]) -> PackedMatrix:
        packed = self._take(plan)
        before = 0
        for part in parts:
            raw = self._is_raw(part, plan)
            for first, count in _chunks(part, plan.cols):
                self._pack(packed, before + first, self._rows(part, first, count, raw=raw), part, raw=raw)
            before += part.out.shape[-2]
        self._report()
        return packed

    def _parts(self, matrix: torch.Tensor) -> list[Target]:
        """In the order of their rows."""
        own = [target for target in self.targets if target.out is matrix or target.out._base is matrix]
        return sorted(own, key=lambda target: target.out.storage_offset())

    def _kind(self, part: Target) -> str:
        return self.reader.tensors[part.name].type

    def _is_raw(self, part: Target, plan: MatrixPlan) -> bool:
        """Whether stored blocks become panels without a detour over floats, which could cost bits."""
        return isinstance(self.reader, RawReader) and can_pack_blocks(self._kind(part), plan.format)

    def _rows(self, part: Target, first: int, count: int, *, raw: bool) -> torch.Tensor:
        """[count, columns] float32, or [count, bytes] as stored; heads in halves."""
        stacked = part.out.dim() == 3  # one of the experts that a tensor holds: taken whole
        if not raw:
            rows = torch.empty(part.out.shape if stacked else (count, part.out.shape[1]))
            read_rows(part, rows, 0 if stacked else first, self.reader)
            return rows[0] if stacked else rows
        assert isinstance(self.reader, RawReader)
        if stacked:
            return torch.from_numpy(self.reader.read_raw(part.name, part.start[0], 1)).view(count, -1)
        stored = torch.from_numpy(self.reader.read_raw(part.name, part.start[0] + first, count))
        if part.pairs is None:
            return stored
        turned = torch.empty_like(stored)
        copy_halves(stored, turned, part.pairs)
        return turned

    def _pack(self, packed: PackedMatrix, first: int, rows: torch.Tensor, part: Target, *, raw: bool) -> None:
        try:
            if raw:
                packed.pack_blocks(rows, self._kind(part), first)
            else:
                packed.pack_rows(rows, first)
        except ValueError as error:
            raise BadModelFile(f"{self.files.name}: the tensor '{part.name}' cannot be packed: {error}.") from error

    def _take(self, plan: MatrixPlan) -> PackedMatrix:
        data = self.room[self.done : self.done + plan.nbytes]
        self.done += plan.nbytes
        return PackedMatrix(data, plan.rows, plan.cols, plan.format)

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.done / self.room.numel())


def _room(size: int) -> torch.Tensor:
    """[size] uint8 zeros, at an address that is a multiple of 64. One block for all matrices: many would leave holes between
    them in which rows on their way lay. numpy asks for pages that are committed where they are first written."""
    block = torch.from_numpy(np.zeros(size + _ALIGNMENT, dtype=np.uint8))
    first = -block.data_ptr() % _ALIGNMENT
    return block[first : first + size]


def _chunks(part: Target, cols: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows: whole panels, and whole heads where their rows lie in pairs; a stacked expert at once."""
    if part.out.dim() == 3:
        yield 0, part.out.shape[1]
        return
    unit = PANEL_ROWS if part.pairs is None else math.lcm(PANEL_ROWS, part.pairs.head)
    step = max(1, _CHUNK_BYTES // (cols * 4 * unit)) * unit
    for first in range(0, part.out.shape[0], step):
        yield first, min(step, part.out.shape[0] - first)
