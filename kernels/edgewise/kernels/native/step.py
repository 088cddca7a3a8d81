"""A whole forward pass of a decoder in one call of the library (src/step.h), so that Python is not between the layers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.kernels.low_rank import LowRank
from edgewise.kernels.native.adapters import PackedAdapter, Product, check_pair
from edgewise.kernels.native.faults import refuse
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.library import library
from edgewise.kernels.native.packed import PackedMatrix, alternate
from edgewise.kernels.native.pages import Pages, pages
from edgewise.kernels.native.structs import Matrix, matrix_of
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rope import RopeTable

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32
_Float = ctypes.c_float


class _Rope(ctypes.Structure):
    _fields_ = (("cos", _Pointer), ("sin", _Pointer), ("axes", _Pointer), ("positions", _Int), ("half", _Int))


class _Layer(ctypes.Structure):
    _fields_ = (
        *(
            (name, _Pointer)
            for name in ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm", "qk_norm")
        ),
        ("qkv", Matrix * 3),
        *((name, Matrix) for name in ("output", "gate_up", "down", "router")),
        ("experts", _Pointer),
        ("rope", _Int),
        ("window", _Int),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "ropes")),
        *(
            (name, _Float)
            for name in ("eps", "attention_scale", "attention_softcap", "logit_softcap", "embedding_scale")
        ),
        *((name, _Int) for name in ("gelu", "experts", "per_token", "expert_ffn", "normalised")),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("tokens", _Int),
        ("sequences", _Int),
        *((name, _Pointer) for name in ("ids", "positions", "rope_positions", "visible", "slots")),
        *((name, _Pointer) for name in ("block_tables", "query_lens", "media", "media_rows", "adapters", "adapter_of")),
        *((name, _Int) for name in ("table_width", "media_count", "adapter_count")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes and numbers of a decoder; as `models.decoder.config.DecoderConfig`, None for no soft cap, no `experts` for none."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    embedding_scale: float
    gelu: bool
    experts: int = 0
    per_token: int = 0
    expert_ffn: int = 0
    normalised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayer:
    """One layer. Norm weights and biases are float32 tensors on the CPU.

    Attributes:
        attention_norm, attention_post_norm, ffn_norm, ffn_post_norm: [hidden]; None where there is no such norm.
        qk_norm: [heads + kv_heads, head_dim] or None.
        qkv: One matrix [(heads + 2 * kv_heads) * head_dim, hidden], or three: queries, keys, values. They, as all matrices
            that take the same rows, are all floats, all rotated, or all other integers.
        qkv_bias: One per matrix of `qkv`; empty if there are none.
        feed: gate_up, panels of gate and up in turn (`Epilogue` in kernels.h), and down; of a layer with experts those of each.
        gate_up_bias: As the rows of gate_up; layers with experts have none.
        router: [experts, hidden] in floats; None in a layer without experts.
        rope: Number of the rope table; None if the layer does not rotate.
        window: Positions that a token sees, itself included; None for all.
    """

    attention_norm: torch.Tensor
    attention_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    ffn_post_norm: torch.Tensor | None
    qk_norm: torch.Tensor | None
    qkv: tuple[PackedMatrix, ...]
    qkv_bias: tuple[torch.Tensor, ...]
    output: PackedMatrix
    output_bias: torch.Tensor | None
    feed: tuple[tuple[PackedMatrix, PackedMatrix], ...]
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    router: PackedMatrix | None
    rope: int | None
    window: int | None


class DecoderStep:
    """A decoder whose forward pass is one call. Not for two threads at once, and no other native kernel beside it.

    Attributes:
        layers, embedding, head, vectors: What it computes with; the library holds their addresses.
    """

    def __init__(
        self,
        shape: StepShape,
        layers: Sequence[StepLayer],
        ropes: Sequence[RopeTable],
        *,
        embedding: PackedMatrix,
        head: PackedMatrix,
        norm: torch.Tensor,
    ) -> None:
        """Raises `NativeUnavailable` without the library, ValueError if shapes or formats do not agree."""
        for layer in layers:
            _check(shape, layer)
        for name, matrix in (("embedding", embedding), ("head", head)):
            if (matrix.rows, matrix.cols) != (shape.vocab, shape.hidden):
                raise ValueError(f"{name} must be [{shape.vocab}, {shape.hidden}], got [{matrix.rows}, {matrix.cols}]")
        self._library = _declared(library())
        self.layers, self.embedding, self.head = tuple(layers), embedding, head
        self.vectors = (
            norm,
            *(tensor for table in ropes for tensor in (table.cos, table.sin, table.axes) if tensor is not None),
        )
        self._shape = shape
        self._num_layers = len(layers)
        self._rope_positions = min((table.cos.shape[0] for table in ropes), default=0)
        self._pages: tuple[Sequence[KVLayer], Any] | None = None
        native_ropes = (_Rope * max(1, len(ropes)))(*map(_rope, ropes))
        self._experts = [_experts(layer) for layer in layers]
        native_layers = (_Layer * len(layers))(*map(_layer, layers, self._experts))
        native_shape = _Shape(
            len(layers), shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn, shape.vocab, len(ropes),
            shape.eps, shape.attention_scale, shape.attention_softcap or 0.0, shape.logit_softcap or 0.0,
            shape.embedding_scale, int(shape.gelu), shape.experts, shape.per_token, shape.expert_ffn, int(shape.normalised),
        )  # fmt: skip
        self._decoder = self._library.edgewise_decoder_new(
            ctypes.byref(native_shape),
            native_layers,
            native_ropes,
            ctypes.byref(matrix_of(embedding, None)),
            ctypes.byref(matrix_of(head, None)),
            norm.data_ptr(),
        )
        if not self._decoder:
            raise MemoryError("there is no memory for a decoder's buffers")

    def __del__(self) -> None:
        if getattr(self, "_decoder", None):
            self._library.edgewise_decoder_free(self._decoder)

    def forward(
        self,
        tokens: torch.Tensor,
        kv: Sequence[KVLayer],
        meta: AttentionMeta,
        media: tuple[torch.Tensor, torch.Tensor] | None = None,
        adapted: Sequence[tuple[PackedAdapter, torch.Tensor]] = (),
    ) -> torch.Tensor:
        """Compute T tokens and write their keys and values.

        Args:
            tokens: [T] int64, contiguous, on the CPU like all that follows.
            kv: One per layer; changed at `meta.slots`.
            meta: Layout of the batch.
            media: Rows [n] int64 of tokens, and values [n, hidden] float32 in place of their embeddings.
            adapted: Adapters that `adapt` made, and the tokens [R] int64 that are computed with them, each with one at most.

        Returns:
            [T, hidden] float32: states after the final norm.

        Raises:
            ValueError: The batch contradicts itself, or lies outside the vocabulary, the pages, the block tables or the rope
                tables. Nothing was written.
            MemoryError: There is none for activations.
        """
        if len(kv) != self._num_layers:
            raise ValueError(f"{self._num_layers} layers of pages expected, got {len(kv)}")
        _check_batch(tokens, meta, media, self._shape.hidden)
        lengths = np.array(meta.query_lens, dtype=np.int32)
        rows, values = media if media is not None else (None, None)
        tables = meta.block_tables
        hidden = torch.empty((tokens.shape[0], self._shape.hidden))
        owners = _owners(adapted, tokens.shape[0])
        adapters = (_Pointer * max(1, len(adapted)))(*(adapter.address for adapter, _ in adapted))
        batch = _Batch(
            tokens.shape[0], len(lengths),
            tokens.data_ptr(), meta.positions.data_ptr(), _pointer(meta.rope_positions), _pointer(meta.visible),
            meta.slots.data_ptr(), tables.data_ptr(), lengths.ctypes.data, _pointer(values), _pointer(rows),
            ctypes.addressof(adapters), None if owners is None else owners.ctypes.data,
            tables.shape[1], 0 if rows is None else rows.shape[0], len(adapted),
        )  # fmt: skip
        fault = self._library.edgewise_decoder_forward(
            self._decoder, ctypes.byref(batch), self._pages_of(kv), hidden.data_ptr()
        )
        if fault:
            refuse(
                fault, num_pages=min(layer.k.shape[0] for layer in kv), meta=meta, slots=meta.slots, tokens=tokens,
                vocab=self._shape.vocab, rope_positions=self._rope_positions,
            )  # fmt: skip
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] float32, contiguous -> [R, vocab] float32, soft-capped where the model does."""
        if hidden.shape[1:] != (self._shape.hidden,) or hidden.dtype != torch.float32 or not hidden.is_contiguous():
            raise ValueError(
                f"hidden must be float32 [rows, {self._shape.hidden}], got {tuple(hidden.shape)} {hidden.dtype}"
            )
        logits = torch.empty((hidden.shape[0], self._shape.vocab))
        rows = (hidden.data_ptr(), hidden.shape[0], logits.data_ptr())
        fault = self._library.edgewise_decoder_logits(self._decoder, *rows) if hidden.shape[0] else 0
        if fault:
            refuse(fault, num_pages=0)
        return logits

    def adapt(self, pairs: Mapping[tuple[int, Product], LowRank]) -> PackedAdapter:
        """Pack an adapter for `forward`.

        Args:
            pairs: By layer and product; gate above up in `gate_up`.

        Raises:
            ValueError: A pair does not fit its product, or the layer has experts.
        """
        return PackedAdapter({key: self._pair(*key, pair) for key, pair in pairs.items()}, self._num_layers)

    def _pair(self, index: int, product: Product, pair: LowRank) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Rows of up as the product's matrices have them."""
        layer, ffn = self.layers[index], self._shape.ffn
        if product in ("gate_up", "down") and layer.router is not None:
            raise ValueError(f"layer {index} has experts, which adapters do not change")
        ((gate_up, down),) = layer.feed if layer.router is None else ((layer.output, layer.output),)
        matrices = {"qkv": layer.qkv, "output": (layer.output,), "gate_up": (gate_up,), "down": (down,)}[product]
        rows = 2 * ffn if product == "gate_up" else sum(matrix.rows for matrix in matrices)
        check_pair(pair, rows, matrices[0].cols)
        if product == "gate_up":
            return pair.down, (alternate(pair.up[:ffn], pair.up[ffn:]),)
        return pair.down, torch.split(pair.up, [matrix.rows for matrix in matrices])

    def workspace_bytes(self) -> int:
        """Memory that steps have taken so far, and keep."""
        return int(self._library.edgewise_decoder_workspace(self._decoder))

    def _pages_of(self, kv: Sequence[KVLayer]) -> Any:
        """Built once for a cache: its tensors do not move."""
        if self._pages is None or self._pages[0] is not kv:
            self._pages = (kv, (Pages * len(kv))(*map(pages, kv)))
        return self._pages[1]


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    loaded.edgewise_decoder_new.restype = _Pointer
    loaded.edgewise_decoder_new.argtypes = [_Pointer] * 6
    loaded.edgewise_decoder_free.argtypes = [_Pointer]
    loaded.edgewise_decoder_free.restype = None
    loaded.edgewise_decoder_forward.argtypes = [_Pointer] * 4
    loaded.edgewise_decoder_logits.argtypes = [_Pointer, _Pointer, _Int, _Pointer]
    loaded.edgewise_decoder_workspace.argtypes = [_Pointer]
    loaded.edgewise_decoder_workspace.restype = ctypes.c_int64
    return loaded


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rope(table: RopeTable) -> _Rope:
    return _Rope(table.cos.data_ptr(), table.sin.data_ptr(), _pointer(table.axes), *table.cos.shape)


def _experts(layer: StepLayer) -> Any:
    """The matrices of a layer's experts, to which the layer points; None in a layer without."""
    if layer.router is None:
        return None
    matrices = [matrix_of(matrix, None) for pair in layer.feed for matrix in pair]
    return (Matrix * len(matrices))(*matrices)


def _layer(layer: StepLayer, experts: Any) -> _Layer:
    biases = layer.qkv_bias or (None,) * len(layer.qkv)
    parts = [matrix_of(matrix, bias) for matrix, bias in zip(layer.qkv, biases, strict=True)]
    return _Layer(
        layer.attention_norm.data_ptr(),
        _pointer(layer.attention_post_norm),
        layer.ffn_norm.data_ptr(),
        _pointer(layer.ffn_post_norm),
        _pointer(layer.qk_norm),
        (Matrix * 3)(*parts),
        matrix_of(layer.output, layer.output_bias),
        Matrix() if layer.router is not None else matrix_of(layer.feed[0][0], layer.gate_up_bias),
        Matrix() if layer.router is not None else matrix_of(layer.feed[0][1], layer.down_bias),
        Matrix() if layer.router is None else matrix_of(layer.router, None),
        None if experts is None else ctypes.addressof(experts),
        -1 if layer.rope is None else layer.rope,
        layer.window or 0,
    )


def _check(shape: StepShape, layer: StepLayer) -> None:
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    if sum(matrix.rows for matrix in layer.qkv) != width or len(layer.qkv) not in (1, 3):
        raise ValueError(f"qkv must have {width} rows in one matrix or three, got {[one.rows for one in layer.qkv]}")
    if len(layer.feed) != (1 if layer.router is None else shape.experts):
        raise ValueError(f"{len(layer.feed)} feed-forward blocks in a layer of {shape.experts} experts")
    if len({(matrix.format.is_float, matrix.format is WeightFormat.INT8_ROTATED) for matrix in layer.qkv}) > 1:
        raise ValueError(
            "queries, keys and values share their input: all must be floats, or rotated, or other integers"
        )
    for name, matrix, cols in (
        *(("qkv", one, shape.hidden) for one in layer.qkv),
        ("output", layer.output, shape.heads * shape.head_dim),
        *(("gate_up", gate_up, shape.hidden) for gate_up, _ in layer.feed),
        *(("down", down, shape.ffn if layer.router is None else shape.expert_ffn) for _, down in layer.feed),
    ):
        if matrix.cols != cols:
            raise ValueError(f"{name} must have {cols} columns, got {matrix.cols}")


def _owners(adapted: Sequence[tuple[PackedAdapter, torch.Tensor]], tokens: int) -> NDArray[np.int32] | None:
    """[tokens]: the number of the adapter of each, -1 for none; None where there are no adapters."""
    if not adapted:
        return None
    owners = np.full(tokens, -1, dtype=np.int32)
    for number, (_, rows) in enumerate(adapted):
        owners[rows.numpy()] = number
    return owners


def _check_batch(
    tokens: torch.Tensor, meta: AttentionMeta, media: tuple[torch.Tensor, torch.Tensor] | None, hidden: int
) -> None:
    """Shapes and types: the library sees addresses alone. What numbers say it checks itself."""
    count, width = tokens.shape[0], meta.block_tables.shape[-1]
    vector, sequences = (count,), (len(meta.query_lens), width)
    wanted = [
        ("tokens", tokens, vector, torch.int64),
        ("positions", meta.positions, vector, torch.int64),
        ("slots", meta.slots, vector, torch.int64),
        ("block_tables", meta.block_tables, sequences, torch.int32),
    ]
    if meta.visible is not None:
        wanted.append(("visible", meta.visible, vector, torch.int64))
    if meta.rope_positions is not None:
        wanted.append(("rope_positions", meta.rope_positions, (3, count), torch.int64))
    if media is not None:
        rows = media[0].shape[0]
        wanted += [
            ("media rows", media[0], (rows,), torch.int64),
            ("media values", media[1], (rows, hidden), torch.float32),
        ]
    for name, tensor, shape, dtype in wanted:
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} must be {dtype} {list(shape)}, contiguous on the CPU, got {tensor.dtype} {list(tensor.shape)}"
            )
