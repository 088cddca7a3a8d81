"""The attention function that transformers' models call instead of their own: this step's keys and values go into our pages,
and `kernels.attention.paged_attention` does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from edgewise.kernels.attention import AttentionPlan, Scratch, paged_attention, plan_attention
from edgewise.kernels.kv_write import kv_rows, write_kv
from edgewise.kernels.paging import AttentionMeta, KVLayer


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one attention layer asks of the kernel: `index` counts layers in the order in which they run."""

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(slots=True)
class _Step:
    """One forward pass. Plans and rows are shared by layers of one shape."""

    kv: Sequence[KVLayer]
    meta: AttentionMeta
    scratch: Scratch
    plans: dict[tuple[int, int, int, int | None], AttentionPlan] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)

    def plan(self, layer: AttentionLayer) -> AttentionPlan:
        key = layer.heads, layer.kv_heads, layer.head_dim, layer.window
        if key not in self.plans:
            heads, kv_heads, head_dim, window = key
            self.plans[key] = plan_attention(
                self.meta, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window, scratch=self.scratch
            )
        return self.plans[key]

    def kv_rows(self, kv_heads: int) -> torch.Tensor:
        if kv_heads not in self.rows:
            self.rows[kv_heads] = kv_rows(self.meta.slots, kv_heads)
        return self.rows[kv_heads]


class PagedAttention:
    """Attention of one model. `attend` has the signature of transformers' attention interface.

    The step's layout reaches it through `step` rather than through the model's keyword arguments, which not every model hands
    on to its attention layers.
    """

    def __init__(self, layers: Mapping[int, AttentionLayer]) -> None:
        """`layers`: By id of the attention module."""
        self._layers = layers
        self._scratch = Scratch()
        self._step: _Step | None = None

    @contextmanager
    def step(self, kv: Sequence[KVLayer], meta: AttentionMeta) -> Iterator[None]:
        """Calls of `attend` inside belong to this batch."""
        self._step = _Step(kv, meta, self._scratch)
        try:
            yield
        finally:
            self._step = None

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object = None,  # noqa: ARG002 - the interface's
        **_options: Any,
    ) -> tuple[torch.Tensor, None]:
        """[1, heads, T, head_dim] and [1, kv_heads, T, head_dim] -> [1, T, heads, head_dim].

        Masks and options were looked at once, by `trace`; here the layer's own record holds.
        """
        if self._step is None:
            raise RuntimeError("an attention layer runs outside of a step")
        step, layer = self._step, self._layers[id(module)]
        pages = step.kv[layer.index]
        new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        write_kv(pages, new_keys, new_values, step.meta.slots, rows=step.kv_rows(layer.kv_heads))
        mixed = paged_attention(
            query[0].transpose(0, 1),
            pages,
            step.meta,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            plan=step.plan(layer),
        )
        return mixed.unsqueeze(0), None
