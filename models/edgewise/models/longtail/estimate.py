"""Sizes of a model from its files' headers alone, whoever runs it. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.models.decoder.config import CONFIG_NAME, read_config
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.files import ModelFiles
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.longtail.outline import Outline, is_longtail, read_outline
from edgewise.models.multimodal.config import read_multimodal
from edgewise.models.weights.gguf import GGUFHeader
from edgewise.models.weights.stored import elements, stored_tensors
from edgewise.models.whisper.config import is_whisper, read_whisper

# The same size under the names of different families, most usual first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
}


def read_network(files: ModelFiles, header: GGUFHeader | None = None) -> NetworkConfig:
    """The configuration of a model, for its sizes; `header` as for `read_config`.

    Of a model that transformers runs it is an estimate, good for dividing memory; the engine measures it when it loads it.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `read_config` and `read_outline`.
    """
    if is_whisper(files):
        return read_whisper(files).sizes()
    seeing = read_multimodal(files)
    if seeing is not None:
        return seeing
    return estimate(files, read_outline(files)) if is_longtail(files) else read_config(files, header)


def estimate(files: ModelFiles, outline: Outline) -> LongTailConfig:
    """Attention as the usual keys name it, parameters as the files hold them."""
    inner = outline.config.get("text_config")
    fields = Fields({**outline.config, **(inner if isinstance(inner, dict) else {})}, CONFIG_NAME)
    layers = _size(fields, "layers", most=MAX_LAYERS)
    hidden, heads = _size(fields, "hidden"), _size(fields, "heads", most=MAX_HEADS)
    kv_heads = 1 if fields.get("multi_query") is True else _size(fields, "kv_heads", heads, MAX_HEADS)
    head_dim = fields.size("head_dim", max(1, hidden // heads), MAX_HEAD_DIM)
    width = heads * head_dim + 2 * kv_heads * head_dim
    return LongTailConfig(
        architecture=outline.architecture,
        vocab_size=fields.size("vocab_size"),
        max_position=outline.max_position,
        kv_heads=(kv_heads,) * layers,
        head_dims=(head_dim,) * layers,
        windows=_windows(fields, layers),
        elements=sum(elements(tensor) for tensor in stored_tensors(files)),
        fixed_bytes=0,
        row_floats=8 * hidden + 8 * width + 6 * _size(fields, "inner", 4 * hidden),
    )


def _size(fields: Fields, what: str, default: int | None = None, most: int = 1 << 24) -> int:
    key = next((name for name in _NAMES[what] if fields.get(name) is not None), _NAMES[what][0])
    return fields.size(key, default, most)


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    kinds, window = fields.get("layer_types"), fields.get("sliding_window")
    if not isinstance(kinds, list) or len(kinds) != layers or type(window) is not int:
        return (None,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
