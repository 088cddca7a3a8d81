"""A model of transformers as the engine's network: one flat ragged batch over the paged cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.files import ModelFiles
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.longtail.outline import read_outline, require_transformers
from edgewise.models.longtail.paged import PagedAttention
from edgewise.models.longtail.trace import Traced, trace
from edgewise.models.longtail.weights import fill
from edgewise.models.weights.open import open_weights

_NAMES = itertools.count()
# Tokens of the comparison at load, the step at which it is cut in two, and how far hidden states may lie apart, relative to
# their length: by rounding alone, an error of logic is of the order of 1.
_CHECKED, _CUT = 24, 7
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.03}

ProgressSink = Callable[[float], None]


def describe(files: ModelFiles) -> LongTailConfig:
    """Sizes of a model, found without its weights.

    Raises:
        UnsupportedModel: It cannot be served over pages, by name; or transformers is missing.
        BadModelFile, StorageError: config.json cannot be used.
    """
    outline = read_outline(files)
    require_transformers(outline.architecture)
    return trace(outline).config


def load_network(
    files: ModelFiles, *, device: torch.device, dtype: torch.dtype, progress: ProgressSink | None = None
) -> TransformersNetwork:
    """Load a model, and compare what it computes over pages with what transformers computes without.

    Args:
        device, dtype, progress: As for `decoder.loading.load_decoder`.

    Raises:
        UnsupportedModel: As `describe`; also when the comparison fails.
        BadModelFile, StorageError: As `weights.fill`.
    """
    traced = trace(read_outline(files))
    traced.model.set_experts_implementation(
        "eager"
    )  # expert by expert; `trace` needed one without data-dependent shapes
    with closing(open_weights(files)) as reader:
        fill(traced.model, reader, body=traced.body, where=files.name, device=device, dtype=dtype, progress=progress)
    tokens = torch.arange(min(_CHECKED, traced.config.max_position), device=device) * 7919 % traced.config.vocab_size
    expected = _own_hidden(traced, tokens)
    network = TransformersNetwork(traced, device, dtype)
    _compare(network, tokens, expected)
    return network


class TransformersNetwork:
    """Satisfies `engine.runner.Network` as `models.decoder.model.Decoder` does.

    A token's bits may depend on what else is in the batch: the products are transformers' own.
    """

    def __init__(self, traced: Traced, device: torch.device, dtype: torch.dtype) -> None:
        """Take the model over: its attention becomes ours, and its head is separated from its layers."""
        self.config = traced.config
        self.device = device
        self.dtype = dtype
        self._attention = PagedAttention(traced.layers)
        _use_attention(traced.model, self._attention.attend)
        self._body: torch.nn.Module = getattr(traced.model, traced.body)
        self._head = traced.model
        self._given = _Given()
        setattr(self._head, traced.body, self._given)

    def __repr__(self) -> str:
        return f"TransformersNetwork({self.config.architecture}, {self.config.num_layers} layers, {self.dtype}, {self.device})"

    def prove_rows(self) -> bool:
        """False: nothing makes the products of transformers' layers independent of the batch."""
        return False

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """As `Decoder.forward`: [T] int64 -> [T, hidden]; writes the tokens' keys and values into `kv`.

        Raises:
            ValueError: `tokens`, `kv` and `meta` do not agree.
        """
        count = sum(meta.query_lens)
        if tokens.shape != (count,) or meta.positions.shape != (count,) or len(kv) != self.config.num_layers:
            raise ValueError(
                f"{count} tokens and {self.config.num_layers} layers expected, got tokens {tuple(tokens.shape)}, "
                f"positions {tuple(meta.positions.shape)} and {len(kv)} layers"
            )
        with self._attention.step(kv, meta):
            return _hidden(self._body, tokens, meta.positions)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, vocab] float32, by the model's own head with whatever scales and caps it has."""
        self._given.hidden = hidden.unsqueeze(0)
        try:
            logits: torch.Tensor = self._head(inputs_embeds=self._given.hidden, use_cache=False).logits[0]
        finally:
            self._given.hidden = None
        return logits.float()


class _Given(torch.nn.Module):
    """Stands where the layers were: the hidden states are those that it is given, by attribute, since some heads call their
    layers with positional arguments and some by name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None

    def forward(self, *_inputs: Any, **_options: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


def _use_attention(model: PreTrainedModel, attend: Callable[..., Any]) -> None:
    """A name without an entry among the mask makers: no masks are made."""
    name = f"edgewise-paged-{next(_NAMES)}"
    AttentionInterface.register(name, attend)
    model.set_attn_implementation(name)


def _hidden(body: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    out = body(input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
    hidden: torch.Tensor = out.last_hidden_state[0]
    return hidden


@torch.inference_mode()
def _own_hidden(traced: Traced, tokens: torch.Tensor) -> torch.Tensor:
    """What the model computes with its own attention, in one go."""
    traced.model.set_attn_implementation("eager")
    return _hidden(getattr(traced.model, traced.body), tokens, torch.arange(tokens.shape[0], device=tokens.device))


def _compare(network: TransformersNetwork, tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """In two steps, so that whatever is kept outside of the pages shows."""
    count = tokens.shape[0]
    pages = -(-count // PAGE_TOKENS)
    kv = [
        KVLayer(*(torch.zeros(pages, heads, PAGE_TOKENS, size, device=network.device) for _ in range(2)))
        for heads, size in zip(network.config.kv_heads, network.config.head_dims, strict=True)
    ]
    found = [
        _one_step(network, tokens, kv, span) for span in ((0, min(_CUT, count)), (_CUT, count)) if span[0] < span[1]
    ]
    error = (torch.cat(found).float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1).clamp_min(1e-12)
    # The median: a 16-bit rounding that sends single tokens to other experts is no error of logic.
    if not float(error.median()) <= _TOLERANCE[network.dtype]:
        raise UnsupportedModel(
            f"config.json: {network.config.architecture} over pages differs from its own attention by "
            f"{float(error.median()):.2g} of the hidden states' length; it attends in a way that pages do not serve."
        )


def _one_step(
    network: TransformersNetwork, tokens: torch.Tensor, kv: list[KVLayer], span: tuple[int, int]
) -> torch.Tensor:
    positions = torch.arange(*span, device=network.device)
    meta = AttentionMeta(
        query_lens=(span[1] - span[0],),
        context_lens=(span[1],),
        positions=positions,
        slots=positions,
        block_tables=torch.arange(kv[0].k.shape[0], dtype=torch.int32, device=network.device).unsqueeze(0),
    )
    return network.forward(tokens[slice(*span)], kv, meta)
