"""What a text encoder is, from the small files of its folder: BERT, RoBERTa and XLM-RoBERTa.

Other families are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object

Pooling = Literal["mean", "cls"]

POOLING_FILE: Final = "1_Pooling/config.json"
LIMIT_FILE: Final = "sentence_bert_config.json"

_FAMILIES: Final = ("bert", "roberta", "xlm-roberta")
_POOLINGS: Final[Mapping[str, Pooling]] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """Sizes of a text encoder.

    Attributes:
        vocab, width, layers, heads, hidden: Of the network; `width` is the length of its vectors.
        eps: Of layer normalization.
        first_place: Row of the table of positions that the first token takes (RoBERTa leaves rows out).
        max_tokens: Longest input, special tokens included.
        pooling: How the states of a text's tokens become one vector; it is then scaled to length one.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    hidden: int
    eps: float
    first_place: int
    max_tokens: int
    pooling: Pooling

    @property
    def weight_bytes(self) -> int:
        """Of all weights in float32, tables of positions left out."""
        block = 4 * self.width**2 + 2 * self.width * self.hidden
        return 4 * (self.vocab * self.width + self.layers * block)


def read_shape(files: ModelFiles) -> EncoderShape:
    """Sizes from config.json, pooling and longest input from the files of sentence-transformers where they are.

    Raises:
        UnsupportedModel: Of another family, or with a part that is not supported, by name.
        BadModelFile: A file is damaged.
    """
    if files.format != "safetensors" or "config.json" not in files.paths:
        raise UnsupportedModel(f"{files.name}: a text encoder is a folder with config.json and model.safetensors.")
    raw = read_object(files.paths["config.json"], "config.json")
    _refuse_others(files.name, raw)
    first_place = 0 if raw["model_type"] == "bert" else _count(raw, "pad_token_id", 0) + 1
    places = _count(raw, "max_position_embeddings") - first_place
    asked = _count(_optional(files, LIMIT_FILE), "max_seq_length", places)
    width, heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    if width % max(heads, 1) or places < 1:
        raise BadModelFile(
            f"{files.name}, config.json: {heads} heads do not divide {width}, or there are no positions."
        )
    return EncoderShape(
        vocab=_count(raw, "vocab_size"),
        width=width,
        layers=_count(raw, "num_hidden_layers"),
        heads=heads,
        hidden=_count(raw, "intermediate_size"),
        eps=float(raw.get("layer_norm_eps", 1e-12)),
        first_place=first_place,
        max_tokens=min(asked, places),
        pooling=_pooling(files),
    )


def _refuse_others(name: str, raw: Mapping[str, Any]) -> None:
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise UnsupportedModel(
            f"{name}: encoders of type {family!r} are not supported (there are: {', '.join(_FAMILIES)})."
        )
    if any(str(it).endswith("ForSequenceClassification") for it in raw.get("architectures") or ()):
        raise UnsupportedModel(f"{name}: cross-encoders are not supported; an encoder of sentences is.")
    wanted = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise UnsupportedModel(f"{name}: {key} {raw[key]!r} is not supported (only {value!r} is).")


def _optional(files: ModelFiles, name: str) -> Mapping[str, Any]:
    path = files.paths.get(name)
    return {} if path is None else read_object(path, name)


def _pooling(files: ModelFiles) -> Pooling:
    """Without the file the mean, as sentence-transformers takes it."""
    raw = _optional(files, POOLING_FILE)
    on = [key for key, value in raw.items() if key.startswith("pooling_mode_") and value is True]
    if not raw or on == []:
        return "mean"
    if len(on) > 1 or on[0] not in _POOLINGS:
        raise UnsupportedModel(f"{files.name}: the pooling {' + '.join(on)} is not supported.")
    return _POOLINGS[on[0]]


def _count(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise BadModelFile(f"config.json: {key} is {value!r}, which is no count.")
    return value
