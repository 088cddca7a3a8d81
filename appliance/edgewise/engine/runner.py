"""Turns a step plan into tensors, runs the network once over the whole ragged batch, and draws the next tokens."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch

from edgewise.engine.adapters import adapted_rows
from edgewise.engine.constraint import Constraints, Permitted
from edgewise.engine.decode_inputs import DecodeInputs, is_plain
from edgewise.engine.drawing import draw
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.kernels.sample import Draw
from edgewise.models.adapters.loading import AdaptedRows
from edgewise.models.decoder.model import Decoder
from edgewise.models.multimodal.protocol import MultimodalNetwork, StepMedia


class Network(Protocol):
    """A decoder as the runner needs it."""

    def forward(self, tokens: torch.Tensor, kv: Seq[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """tokens [T] int64 -> hidden states [T, hidden]; writes the T tokens' keys and values into `kv`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, vocab] float32."""


@runtime_checkable
class Aligns(Protocol):
    """A network that can tell where in a recording words are spoken; see `models.whisper.network.WhisperNetwork.alignment`."""

    def alignment(
        self, tokens: torch.Tensor, kv: Seq[KVLayer], pages: torch.Tensor, *, first: int, last: int, frames: int
    ) -> list[int]: ...


Observer = Callable[[Seq[Work], torch.Tensor, torch.Tensor], None]
"""Takes the work of a step, its tokens [T] and their hidden states [T, hidden], in this order."""


class Runner:
    """The network, its KV cache and a device.

    Attributes:
        constraints: The grammars that answers follow.
        observer: Told of every step's hidden states, if any.
    """

    def __init__(
        self, network: Network, kv: Seq[KVLayer], device: torch.device, constraints: Constraints | None = None
    ) -> None:
        self.constraints = constraints or Constraints(None)
        self.observer: Observer | None = None
        self._network = network
        self._kv = kv
        self._device = device
        self._inputs = DecodeInputs() if device.type == "cpu" else None

    @torch.inference_mode()
    def run(self, work: Seq[Work], media: StepMedia | None = None) -> list[list[Draw]]:
        """Compute all work in one forward pass; the draws of each item (`engine.drawing.draw`), none where it does not sample.

        Args:
            media: The rows of placeholders in `work`; the network then takes media.
        """
        if media is None and self._inputs is not None and is_plain(work):
            return self._decode(work)
        sampled = [item for item in work if item.sample]
        masks = [self._mask(item.sequence) for item in sampled]
        ends = np.cumsum([item.count for item in work]) - 1
        rows = [
            int(row)
            for end, item in zip(ends, work, strict=True)
            if item.sample
            for row in range(end - len(item.proposed), end + 1)
        ]
        hidden = self._forward(work, media, rows)
        if not rows:
            return [[] for _ in work]
        logits = self._network.logits(hidden[torch.tensor(rows, device=self._device)])
        draws = iter(draw(logits, sampled, masks, self._mask))
        return [next(draws) if item.sample else [] for item in work]

    def _decode(self, work: Seq[Work]) -> list[list[Draw]]:
        """`run` where every item decodes: each hidden state is drawn from."""
        masks = [self._mask(item.sequence) for item in work]
        assert self._inputs is not None
        tokens, meta = self._inputs.of(work)
        self._announce(tokens, meta, None, ())
        hidden = self._network.forward(tokens, self._kv, meta)
        if self.observer is not None:
            self.observer(work, tokens, hidden)
        return draw(self._network.logits(hidden), work, masks, self._mask)

    @torch.inference_mode()
    def all_logits(self, work: Seq[Work], media: StepMedia | None = None) -> torch.Tensor:
        """[T, vocab] float32 logits of every token of the step; for quality measurements."""
        return self._network.logits(self._forward(work, media, None))

    def alignment(self, sequence: Sequence) -> tuple[int, ...]:
        """Where the words of a sequence's prompt are spoken (`TokenChunk.frames`); all of the prompt is computed."""
        asked, prompt = sequence.request.alignment, sequence.request.prompt
        assert asked is not None
        assert isinstance(self._network, Aligns)
        before = sequence.spans.end
        text = torch.tensor(prompt[before:], dtype=torch.int64, device=self._device)
        pages = torch.tensor(sequence.pages, dtype=torch.int32, device=self._device)
        # What foretells a token lies one place before it.
        found = self._network.alignment(
            text, self._kv, pages, first=asked.first - before - 1, last=len(text) - 1, frames=asked.frames
        )
        return tuple(found)

    def _announce(
        self, tokens: torch.Tensor, meta: AttentionMeta, rows: Seq[int] | None, adapted: Seq[AdaptedRows]
    ) -> None:
        """Called before each forward pass, for runners that lead others (`engine.devices`).

        Args:
            tokens: [T] int64.
            rows: Of the T, those of which logits will be computed; None for all.
        """

    def _forward(self, work: Seq[Work], media: StepMedia | None, rows: Seq[int] | None = None) -> torch.Tensor:
        tokens, meta = self._tokens(work), self._meta(work)
        adapted = adapted_rows(work, self._device)
        self._announce(tokens, meta, rows, adapted)
        if adapted:
            hidden = cast("Decoder", self._network).forward(tokens, self._kv, meta, adapted=adapted)
        elif media is None:
            hidden = self._network.forward(tokens, self._kv, meta)
        else:
            hidden = cast("MultimodalNetwork", self._network).forward(tokens, self._kv, meta, media)
        if self.observer is not None:
            self.observer(work, tokens, hidden)
        return hidden

    def _mask(self, sequence: Sequence, drawn: Seq[int] = ()) -> Future[Permitted] | None:
        if sequence.request.constraint is None:
            return None
        return self.constraints.begin(sequence.id, [*sequence.tokens[len(sequence.request.prompt) :], *drawn])

    def _tokens(self, work: Seq[Work]) -> torch.Tensor:
        tokens = [token for item in work for token in item.tokens]
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)

    def _meta(self, work: Seq[Work]) -> AttentionMeta:
        positions = np.concatenate([np.arange(item.start, item.start + item.count) for item in work])
        tables = np.zeros((len(work), max(len(item.sequence.pages) for item in work)), dtype=np.int32)
        for row, item in enumerate(work):
            tables[row, : len(item.sequence.pages)] = item.sequence.pages
        owner = np.repeat(np.arange(len(work)), [item.count for item in work])
        slots = tables[owner, positions // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + positions % PAGE_TOKENS
        return AttentionMeta(
            query_lens=tuple(item.count for item in work),
            context_lens=tuple(item.start + item.count for item in work),
            positions=torch.from_numpy(positions).to(self._device),
            slots=torch.from_numpy(slots).to(self._device),
            block_tables=torch.from_numpy(tables).to(self._device),
            visible=self._visible(work),
            rope_positions=self._rope_positions(work),
        )

    def _visible(self, work: Seq[Work]) -> torch.Tensor | None:
        """On the CPU, where attention is planned."""
        if not any(item.sequence.spans.some_whole and item.start < item.sequence.spans.end for item in work):
            return None
        return torch.from_numpy(np.concatenate([item.sequence.spans.visible(item.start, item.count) for item in work]))

    def _rope_positions(self, work: Seq[Work]) -> torch.Tensor | None:
        if not any(item.sequence.spans.three for item in work):
            return None
        positions = [item.sequence.spans.rope(item.start, item.count) for item in work]
        return torch.from_numpy(np.concatenate(positions, axis=1)).to(self._device)
