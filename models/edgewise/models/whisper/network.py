"""Whisper as the engine's network: a sequence is a recording and then text, all of it in one chain of KV pages.

The recording's places in the prompt hold, in each layer, the keys and values that text attends to across (they depend on the
sound alone); the text's own lie behind them. So pages of a recording are shared, spilled and resumed as any prefix is: a second
try at another temperature, or the question which language it is, encodes nothing again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from edgewise.kernels.attention import AttentionPlan, Scratch, paged_attention, plan_attention
from edgewise.kernels.attention_scores import attention_scores
from edgewise.kernels.embedding import embedding
from edgewise.kernels.kv_write import kv_rows, write_kv
from edgewise.kernels.linear import linear, measure
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.kernels.rows import default_rows
from edgewise.models.multimodal.protocol import StepMedia
from edgewise.models.whisper.alignment import token_frames
from edgewise.models.whisper.alignment_heads import Head
from edgewise.models.whisper.config import WhisperConfig
from edgewise.models.whisper.encoder import EPS, WhisperEncoder


@dataclass(frozen=True, slots=True)
class _Text:
    """The text tokens of one step.

    Attributes:
        rows: [n] int64, which of the step's tokens.
        own, across: Layout of attention among text, and to the recordings.
        own_rows: Of `kernels.kv_write`.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    own: AttentionMeta
    across: AttentionMeta
    own_plan: AttentionPlan
    across_plan: AttentionPlan
    own_rows: torch.Tensor


class WhisperNetwork:
    """Satisfies `engine.runner.Network` and `models.multimodal.protocol.MultimodalNetwork`.

    Residual stream, norms and attention are float32, products in the weights' dtype, as in `models.decoder.model.Decoder`.

    Args:
        heads: Those that tell where words are spoken (`alignment_heads`).
    """

    def __init__(self, config: WhisperConfig, tensors: Mapping[str, torch.Tensor], heads: Sequence[Head] = ()) -> None:
        self.config = config
        self.alignment_heads = tuple(heads)
        self.encoder = WhisperEncoder(config, tensors)
        self._tensors = tensors
        self._table = tensors["model.decoder.embed_tokens.weight"]
        self.rows = default_rows(self._table.dtype)
        self._scratch = Scratch()

    def __repr__(self) -> str:
        return f"WhisperNetwork({self.config.decoder_layers} layers, {self._table.dtype}, {self._table.device})"

    def prove_rows(self) -> bool:
        """As `Decoder.prove_rows`."""
        matrices = [
            t for name, t in self._tensors.items() if t.dim() == 2 and name.startswith("model.decoder.layers.0")
        ]
        self.rows = measure([*matrices, self._table])
        return self.rows.proven

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta, media: StepMedia | None = None
    ) -> torch.Tensor:
        """As `Decoder.forward`: [T] int64 -> [T, width]. Rows of recordings come back as zeros: nothing is read off them.

        Raises:
            ValueError: The step has places of a recording without their rows.
        """
        config = self.config
        heard = (meta.positions < config.audio_tokens).nonzero().flatten()
        if heard.shape[0] != (0 if media is None else media.rows.shape[0]):
            raise ValueError(f"{heard.shape[0]} tokens of recordings in this step, and rows for another number of them")
        if media is not None:
            self._write_recordings(kv, meta.slots[media.rows], media.values.to(self._table.dtype))
        hidden = torch.zeros((tokens.shape[0], config.width), dtype=self._table.dtype, device=self._table.device)
        text = self._text(tokens, meta)
        if text is not None:
            hidden[text.rows] = self._write_text(text, kv)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, width] -> [R, vocab] float32."""
        return linear(hidden, self._table, None, self.rows).float()

    @torch.inference_mode()
    def alignment(
        self, tokens: torch.Tensor, kv: Sequence[KVLayer], pages: torch.Tensor, *, first: int, last: int, frames: int
    ) -> list[int]:
        """Where in its recording each token of a text is spoken (`whisper.alignment`).

        The pages of the sequence hold all of its keys and values. So its text is computed once more, all tokens together, reading
        them and writing nothing, and its attention to the recording is looked at on the way.

        Args:
            tokens: [n] int64, all of the text, with what it was told.
            kv: Every layer's pages.
            pages: [p] int32, the sequence's.
            first, last: Of `tokens`, those of which is told where what they were followed by is spoken.
            frames: Of the recording that the text covers.

        Returns:
            `last - first` frames, 50 a second.
        """
        before, count = self.config.audio_tokens, tokens.shape[0]
        positions = torch.arange(before, before + count, device=tokens.device)
        meta = AttentionMeta(
            query_lens=(count,),
            context_lens=(before + count,),
            positions=positions,
            slots=pages.long()[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
            block_tables=pages[None],
        )
        text = self._text(tokens, meta)
        assert text is not None
        frames = min(frames, self.config.frames)
        return token_frames(self._scores_across(text, kv, pages, frames), first, last)

    def _scores_across(
        self, text: _Text, kv: Sequence[KVLayer], pages: torch.Tensor, frames: int
    ) -> Iterator[torch.Tensor]:
        """Of each alignment head, [n, frames] float32."""
        x, rows = self._embedded(text), slice(0, text.rows.shape[0])
        for index in range(max(layer for layer, _ in self.alignment_heads) + 1):
            x = x + self._own_attention(x, index, kv[index], text, write=False)
            q = self._across_queries(x, index)
            for head in (head for layer, head in self.alignment_heads if layer == index):
                scale = self.config.head_dim**-0.5
                yield attention_scores(q[rows], kv[index], pages, heads=(head,), count=frames, scale=scale)[0]
            x = self._across_and_inner(x, q, index, kv[index], text)

    def _write_recordings(self, kv: Sequence[KVLayer], slots: torch.Tensor, values: torch.Tensor) -> None:
        """Keys and values of the recordings' frames, in all layers."""
        rows = kv_rows(slots, self.config.decoder_heads)
        for index, pages in enumerate(kv):
            name = f"layers.{index}.encoder_attn"
            k, v = (self._heads(self._linear(values, f"{name}.{part}")) for part in ("k_proj", "v_proj"))
            write_kv(pages, k, v, slots, rows=rows)

    def _text(self, tokens: torch.Tensor, meta: AttentionMeta) -> _Text | None:
        """What of the step is text; None where nothing is."""
        before, pages = self.config.audio_tokens, self.config.audio_tokens // PAGE_TOKENS
        counts = [min(new, context - before) for new, context in zip(meta.query_lens, meta.context_lens, strict=True)]
        kept = [at for at, count in enumerate(counts) if count > 0]
        if not kept:
            return None
        device = meta.positions.device
        rows = (meta.positions >= before).nonzero().flatten()
        tables = meta.block_tables[torch.tensor(kept, device=device)]
        lens, positions = tuple(counts[at] for at in kept), meta.positions[rows] - before
        own = AttentionMeta(
            query_lens=lens,
            context_lens=tuple(meta.context_lens[at] - before for at in kept),
            positions=positions,
            slots=meta.slots[rows],
            block_tables=tables[:, pages:].contiguous(),
        )
        across = AttentionMeta(
            query_lens=lens,
            context_lens=(self.config.frames,) * len(kept),
            positions=positions,
            slots=own.slots,
            block_tables=tables[:, :pages].contiguous(),
            visible=torch.full_like(positions, self.config.frames - 1),
        )
        return _Text(
            rows=rows,
            tokens=tokens[rows],
            positions=positions,
            own=own,
            across=across,
            own_plan=self._plan(own),
            across_plan=self._plan(across),
            own_rows=kv_rows(own.slots, self.config.decoder_heads),
        )

    def _plan(self, meta: AttentionMeta) -> AttentionPlan:
        heads = self.config.decoder_heads
        return plan_attention(meta, heads=heads, kv_heads=heads, head_dim=self.config.head_dim, scratch=self._scratch)

    def _write_text(self, text: _Text, kv: Sequence[KVLayer]) -> torch.Tensor:
        """[n, width] hidden states of the text's tokens after the final norm."""
        x = self._embedded(text)
        for index, pages in enumerate(kv):
            x = x + self._own_attention(x, index, pages, text)
            x = self._across_and_inner(x, self._across_queries(x, index), index, pages, text)
        return self._normed(x[: text.rows.shape[0]], "layer_norm")

    def _embedded(self, text: _Text) -> torch.Tensor:
        """[padded n, width] float32."""
        positions = self._tensors["model.decoder.embed_positions.weight"]
        x = embedding(text.tokens, self._table) + positions[text.positions].float()
        return functional.pad(x, (0, 0, 0, self.rows.padded(x.shape[0]) - x.shape[0]))

    def _own_attention(
        self, x: torch.Tensor, index: int, pages: KVLayer, text: _Text, *, write: bool = True
    ) -> torch.Tensor:
        """`write`: whether the keys and values are to be stored, or have been."""
        name = f"layers.{index}.self_attn"
        normed = self._normed(x, f"{name}_layer_norm")
        q = self._heads(self._linear(normed, f"{name}.q_proj"))
        if write:
            k, v = (self._heads(self._linear(normed, f"{name}.{part}")) for part in ("k_proj", "v_proj"))
            new = slice(0, text.rows.shape[0])
            write_kv(pages, k[new], v[new], text.own.slots, rows=text.own_rows)
        return self._attend(q, pages, text.own, text.own_plan, name)

    def _across_queries(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """[padded n, heads, head_dim]."""
        name = f"layers.{index}.encoder_attn"
        return self._heads(self._linear(self._normed(x, f"{name}_layer_norm"), f"{name}.q_proj"))

    def _across_and_inner(
        self, x: torch.Tensor, q: torch.Tensor, index: int, pages: KVLayer, text: _Text
    ) -> torch.Tensor:
        """What follows a layer's own attention."""
        x = x + self._attend(q, pages, text.across, text.across_plan, f"layers.{index}.encoder_attn")
        inner = self._linear(self._normed(x, f"layers.{index}.final_layer_norm"), f"layers.{index}.fc1")
        active = functional.gelu(inner.float()).to(inner.dtype)
        return x + self._linear(active, f"layers.{index}.fc2")

    def _attend(
        self, q: torch.Tensor, pages: KVLayer, meta: AttentionMeta, plan: AttentionPlan, name: str
    ) -> torch.Tensor:
        mixed = paged_attention(q.float(), pages, meta, scale=self.config.head_dim**-0.5, plan=plan)
        return self._linear(mixed.flatten(1).to(self._table.dtype), f"{name}.out_proj")

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], self.config.decoder_heads, self.config.head_dim)

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (self._tensors[f"model.decoder.{name}.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(x, weight.shape, weight.float(), bias.float(), EPS).to(weight.dtype)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        bias = self._tensors.get(f"model.decoder.{name}.bias")
        return linear(x, self._tensors[f"model.decoder.{name}.weight"], bias, self.rows)
