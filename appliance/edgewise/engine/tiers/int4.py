"""KV pages rounded to 4 bits for their way over a slow link, and back into the format in which an engine stores them.

Keys are grouped by channel over the tokens of a page, because single channels of keys are large in all tokens; values by token,
in runs of 32 channels (Liu et al. 2024, "KIVI", section 3). A group of numbers x becomes 4-bit codes with the smallest number and
the step between two codes in float16: x = low + step * code. What comes back are not the pages that were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer

_RUN = 32  # channels of a group of values
_LEVELS = 15
_HALF_MOST = 65504.0


@dataclass(frozen=True, slots=True)
class _Tensors:
    """One layer of a page: shape [kv_heads, PAGE_TOKENS, head_dim] of keys and of values, their type, and the first byte of keys,
    values and, for 8-bit types, their scales."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    starts: tuple[int, int]
    scales: tuple[int, int] | None

    @property
    def numbers(self) -> int:
        return prod(self.shape)

    @property
    def group(self) -> int:
        """Numbers of a group of values: a run, or the whole head where it is no multiple of one."""
        return _RUN if self.shape[2] % _RUN == 0 else self.shape[2]

    @property
    def packed(self) -> tuple[int, int]:
        """Bytes of rounded keys and values: codes, and two float16 a group."""
        return tuple(self.numbers // 2 + 4 * self.numbers // size for size in (PAGE_TOKENS, self.group))  # type: ignore[return-value]


class Int4Pages:
    """Knows the pages of one engine, as `engine.tiers.mover.KVPageMover` lays them out."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        self._layers: list[_Tensors] = []
        at = 0
        for layer in layers:
            shape = tuple(layer.k.shape[1:])
            size = prod(shape) * layer.k.dtype.itemsize
            starts, at = (at, at + size), at + 2 * size
            scales = None
            if layer.k_scale is not None:
                size = 4 * prod(shape[:2])
                scales, at = (at, at + size), at + 2 * size
            self._layers.append(_Tensors(shape, layer.k.dtype, starts, scales))  # type: ignore[arg-type]
        self._stored = at
        self.page_bytes = sum(sum(layer.packed) for layer in self._layers)
        """Of a rounded page."""

    def __repr__(self) -> str:
        return f"Int4Pages({len(self._layers)} layers, {self._stored} to {self.page_bytes} bytes a page)"

    @torch.inference_mode()
    def pack(self, contents: Sequence[memoryview | bytes]) -> list[bytes]:
        """Pages as they are stored -> rounded, `page_bytes` each."""
        if not contents:
            return []
        pages = _rows(contents, self._stored)
        parts: list[torch.Tensor] = []
        for layer in self._layers:
            keys, values = (_stored(pages, layer, which) for which in (0, 1))
            parts += [_round(keys.transpose(2, 3), PAGE_TOKENS), _round(values, layer.group)]
        return [row.numpy().tobytes() for row in torch.cat(parts, dim=1)]

    @torch.inference_mode()
    def unpack(self, contents: Sequence[memoryview | bytes]) -> list[bytes]:
        """Rounded pages -> as they are stored.

        Raises:
            ValueError: One has another size.
        """
        if not contents:
            return []
        rounded = _rows(contents, self.page_bytes)
        pages = torch.empty((len(contents), self._stored), dtype=torch.uint8)
        at = 0
        for layer in self._layers:
            heads, tokens, channels = layer.shape
            for_keys, for_values = layer.packed
            keys = _numbers(rounded[:, at : at + for_keys], layer.numbers, PAGE_TOKENS)
            values = _numbers(rounded[:, at + for_keys : at + for_keys + for_values], layer.numbers, layer.group)
            at += for_keys + for_values
            keys = keys.view(-1, heads, channels, tokens).transpose(2, 3)
            _store(pages, layer, keys, values.view(-1, heads, tokens, channels))
        return [row.numpy().tobytes() for row in pages]

    @torch.inference_mode()
    def distance(self, one: memoryview | bytes, other: memoryview | bytes) -> float:
        """Of two stored pages: the largest relative difference of a layer's keys or values (L2, to `other`), NaN if one is."""
        pages = _rows((one, other), self._stored)
        far = [
            torch.linalg.vector_norm(both[0] - both[1]) / torch.linalg.vector_norm(both[1]).clamp_min(1e-9)
            for layer in self._layers
            for both in (_stored(pages, layer, 0), _stored(pages, layer, 1))
        ]
        return float(torch.stack(far).max())


def _rows(contents: Sequence[memoryview | bytes], size: int) -> torch.Tensor:
    """[pages, size] uint8, a copy."""
    if any(len(content) != size for content in contents):
        raise ValueError(f"a page has {size} bytes")
    return torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).view(len(contents), size)


def _stored(pages: torch.Tensor, layer: _Tensors, which: int) -> torch.Tensor:
    """Keys (0) or values (1) of a layer, [pages, kv_heads, PAGE_TOKENS, head_dim] float32."""
    first = layer.starts[which]
    raw = pages[:, first : first + layer.numbers * layer.dtype.itemsize].contiguous()
    numbers = raw.view(layer.dtype).view(-1, *layer.shape).float()
    if layer.scales is None:
        return numbers
    first = layer.scales[which]
    scales = pages[:, first : first + 4 * prod(layer.shape[:2])].contiguous().view(torch.float32)
    return numbers * scales.view(-1, *layer.shape[:2], 1)


def _store(pages: torch.Tensor, layer: _Tensors, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write [pages, kv_heads, PAGE_TOKENS, head_dim] float32 into a layer's bytes, as the engine would."""
    count, heads, tokens, channels = keys.shape
    k, v = (torch.empty((count, *layer.shape), dtype=layer.dtype) for _ in range(2))
    k_scale, v_scale = (torch.empty((count, heads, tokens)) if layer.scales else None for _ in range(2))
    rows = [one.transpose(1, 2).reshape(count * tokens, heads, channels) for one in (keys, values)]
    write_kv(KVLayer(k, v, k_scale, v_scale), rows[0], rows[1], torch.arange(count * tokens))
    for first, tensor in zip((*layer.starts, *(layer.scales or ())), (k, v, k_scale, v_scale), strict=False):
        if tensor is not None:
            raw = tensor.reshape(count, -1).view(torch.uint8)
            pages[:, first : first + raw.shape[1]] = raw


def _round(numbers: torch.Tensor, group: int) -> torch.Tensor:
    """[pages, ...] float32 -> [pages, bytes]: 4-bit codes, two a byte, then the groups' lows and steps."""
    count = numbers.shape[0]
    groups = numbers.reshape(count, -1, group)
    low = groups.amin(-1).clamp(-_HALF_MOST, _HALF_MOST).half()
    step = ((groups.amax(-1) - low.float()) / _LEVELS).clamp(0, _HALF_MOST).half()
    divisor = step.float().masked_fill(step == 0, 1.0).unsqueeze(-1)
    codes = ((groups - low.float().unsqueeze(-1)) / divisor).round_().clamp_(0, _LEVELS).nan_to_num_(nan=0.0)
    pairs = codes.to(torch.uint8).reshape(count, -1, 2)
    return torch.cat([pairs[..., 0] | pairs[..., 1] << 4, low.view(torch.uint8), step.view(torch.uint8)], dim=1)


def _numbers(rounded: torch.Tensor, count: int, group: int) -> torch.Tensor:
    """[pages, bytes] -> [pages, count] float32."""
    codes, rest = rounded[:, : count // 2], rounded[:, count // 2 :].contiguous()
    low, step = rest.view(torch.float16).float().unsqueeze(-1).chunk(2, dim=1)
    both = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(len(rounded), -1, group)
    return (low + step * both.float()).reshape(len(rounded), count)
