"""Finds out how a model of transformers attends, by letting it run once without weights (on torch's meta device)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.longtail.masks import note_mask, window_of
from edgewise.models.longtail.outline import Outline
from edgewise.models.longtail.paged import AttentionLayer

_TOKENS = 5
_NAMES = itertools.count()
# Options of an attention call that change nothing here, or that are read below.
_KNOWN = frozenset(
    {"scaling", "dropout", "sliding_window", "softcap", "is_causal", "position_ids", "cache_position", "use_cache"}
    | {"position_embeddings", "output_attentions", "output_hidden_states", "output_router_logits", "training"}
)
# Rope whose angles depend on the longest position of a batch: keys in the cache would have been turned by others.
_BATCH_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Traced:
    """A model without weights.

    Attributes:
        model: On the meta device, for inference.
        body: Name of the child that computes hidden states; the rest makes logits of them.
        layers: By id of the attention module.
    """

    model: PreTrainedModel
    body: str
    layers: dict[int, AttentionLayer]
    config: LongTailConfig


@dataclass(slots=True)
class _Recorder:
    where: str
    max_position: int
    layers: dict[int, AttentionLayer] = field(default_factory=dict)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Note a layer; the result has the right shape and no contents."""
        if id(module) in self.layers:
            raise UnsupportedModel(f"{self.where} runs an attention layer twice for one token.")
        if (
            key.shape != value.shape
            or query.shape[0] != 1
            or query.shape[2:] != key.shape[2:]
            or query.shape[2] != _TOKENS
        ):
            shapes = f"queries {list(query.shape)}, keys {list(key.shape)}, values {list(value.shape)}"
            raise UnsupportedModel(f"{self.where} has attention that is not of one head size: {shapes}.")
        self._check(options)
        heads, head_dim = query.shape[1], query.shape[3]
        window = window_of(attention_mask, self.max_position, self.where)
        self._check_window(options.get("sliding_window"), window)
        scaling, softcap = options.get("scaling"), options.get("softcap")
        self.layers[id(module)] = AttentionLayer(
            index=len(self.layers),
            heads=heads,
            kv_heads=key.shape[1],
            head_dim=head_dim,
            scale=float(scaling) if scaling is not None else head_dim**-0.5,
            window=window,
            softcap=None if softcap is None else float(softcap),
        )
        return query.new_empty(1, query.shape[2], heads, head_dim), None

    def _check(self, options: dict[str, Any]) -> None:
        if options.get("s_aux") is not None:
            raise UnsupportedModel(f"{self.where} has attention sinks ('s_aux'), which the kernels do not have.")
        if options.get("is_causal") is False:
            raise UnsupportedModel(f"{self.where} has attention that looks ahead ('is_causal' is false).")
        for name, value in options.items():
            if name not in _KNOWN and isinstance(value, torch.Tensor):
                raise UnsupportedModel(f"{self.where} hands '{name}' to its attention, which the kernels do not know.")

    def _check_window(self, stated: int | None, found: int | None) -> None:
        agrees = stated is None or stated == found or (found is None and stated >= self.max_position)
        if not agrees:
            raise UnsupportedModel(f"{self.where} states a window of {stated} positions, its mask has {found}.")


def trace(outline: Outline) -> Traced:
    """Build the model without weights and run it once.

    Raises:
        UnsupportedModel: transformers does not know it, or its attention is not of the kind that pages serve, by name.
        BadModelFile: Its configuration is refused by its class.
    """
    where = f"config.json: {outline.architecture}"
    name = f"edgewise-trace-{next(_NAMES)}"
    recorder = _Recorder(where, outline.max_position)
    AttentionInterface.register(name, recorder.attend)
    AttentionMaskInterface.register(name, note_mask)
    model = _build(outline, where, name)
    _check_model(model, where)
    body = _body_name(model, where)
    _run(model, body, where)
    layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
    if len(recorder.layers) != layers:
        raise UnsupportedModel(
            f"{where} has {layers} layers, of which {len(recorder.layers)} go through transformers' attention interface; "
            "state-space, recurrent and convolution layers keep state that pages do not hold."
        )
    return Traced(model, body, recorder.layers, _sizes(outline, model, list(recorder.layers.values())))


def _build(outline: Outline, where: str, attention: str) -> PreTrainedModel:
    kind: Any = getattr(transformers, outline.architecture, None)
    if kind is None or outline.architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise UnsupportedModel(f"{where} is no causal language model of transformers {transformers.__version__}.")
    config = _config(outline, kind, where)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = kind._from_config(
                config, attn_implementation=attention, experts_implementation="batched_mm"
            )
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{where} cannot be built by transformers {transformers.__version__}: {error}"
        ) from error
    model.train(False)  # dropout off
    model.requires_grad_(False)
    return model


def _config(outline: Outline, kind: Any, where: str) -> PretrainedConfig:
    values = {key: value for key, value in outline.config.items() if key not in ("quantization_config", "auto_map")}
    try:
        config: PretrainedConfig = kind.config_class.from_dict(values)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadModelFile(f"{where} does not take this configuration: {error}") from error
    ropes = getattr(config.get_text_config(), "rope_parameters", None) or {}
    tables = [ropes, *(table for table in ropes.values() if isinstance(table, dict))] if isinstance(ropes, dict) else []
    for table in tables:
        if table.get("rope_type") in _BATCH_ROPES:
            raise UnsupportedModel(
                f"{where} has rope of the type {table['rope_type']!r}, whose angles change with the batch."
            )
    return config


def _check_model(model: PreTrainedModel, where: str) -> None:
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(f"{where} keeps recurrent state beside its keys and values, which pages do not hold.")
    if getattr(model.config.get_text_config(), "attention_chunk_size", None):
        raise UnsupportedModel(f"{where} attends in chunks ('attention_chunk_size'), which the kernels do not have.")


def _body_name(model: PreTrainedModel, where: str) -> str:
    if isinstance(getattr(model, model.base_model_prefix, None), torch.nn.Module):
        return str(model.base_model_prefix)
    inner: torch.nn.Module = model.get_decoder()
    for name, child in model.named_children():
        if any(module is inner for module in child.modules()):
            return str(name)
    raise UnsupportedModel(f"{where} does not keep its head apart from its layers.")


@torch.inference_mode()
def _run(model: PreTrainedModel, body: str, where: str) -> None:
    ids = torch.zeros((1, _TOKENS), dtype=torch.int64, device="meta")
    positions = torch.arange(_TOKENS, device="meta").unsqueeze(0)
    try:
        # With a mask of ones given, masks are made of positions alone; nothing looks for packed sequences.
        getattr(model, body)(
            input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions, use_cache=False
        )
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        raise UnsupportedModel(
            f"{where} does not run through transformers' attention interface ({type(error).__name__}: {error})."
        ) from error


def _sizes(outline: Outline, model: PreTrainedModel, layers: list[AttentionLayer]) -> LongTailConfig:
    parameters = dict(model.named_parameters())
    fixed = [parameter for name, parameter in parameters.items() if keeps_float32(model, name)]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    text = model.config.get_text_config()
    vocab, hidden = int(text.vocab_size), int(text.hidden_size)
    width = max((size for p in parameters.values() for size in p.shape if size != vocab), default=hidden)
    attention = max(layer.heads * layer.head_dim + 2 * layer.kv_heads * layer.head_dim for layer in layers)
    experts = int(getattr(text, "num_experts_per_tok", 1) or 1)
    return LongTailConfig(
        architecture=outline.architecture,
        vocab_size=vocab,
        max_position=outline.max_position,
        kv_heads=tuple(layer.kv_heads for layer in layers),
        head_dims=tuple(layer.head_dim for layer in layers),
        windows=tuple(layer.window for layer in layers),
        elements=sum(p.numel() for p in parameters.values()) - sum(p.numel() for p in fixed),
        fixed_bytes=sum(p.numel() for p in fixed) * 4 + buffers,
        row_floats=8 * hidden + 8 * attention + 6 * width * experts,
    )


def keeps_float32(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter's model wants it in float32 whatever the others are in."""
    kept = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    return any(part in kept for part in name.split("."))
