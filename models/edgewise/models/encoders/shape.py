"""What a text encoder is, from the small files of its folder: of sentences, whose vectors are compared, or a cross-encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, Final, Literal

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.core.sizes import mib
from edgewise.models.encoders.families import Config, Sizes, count, family_of
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_list, read_object

Pooling = Literal["mean", "cls"]
Activation = Literal["gelu", "silu"]
HeadActivation = Literal["tanh", "relu", "gelu"]
Scale = Literal["sigmoid", "identity"]

POOLING_FILE: Final = "1_Pooling/config.json"
LIMIT_FILE: Final = "sentence_bert_config.json"
TOKENIZER_FILE: Final = "tokenizer_config.json"
MODULES_FILE: Final = "modules.json"
TOLD_FILE: Final = "config_sentence_transformers.json"

_POOLINGS: Final[Mapping[str, Pooling]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "mean": "mean",
    "cls": "cls",
}
_MODULES: Final = ("Transformer", "Pooling", "Normalize")
_HEADS: Final[Mapping[str, HeadActivation]] = {"distilbert": "relu", "modernbert": "gelu"}
"""Between a head's two products; tanh where it is not said."""
_SCALES: Final[Mapping[str, Scale]] = {"Sigmoid": "sigmoid", "Identity": "identity"}
"""By the last part of the name of torch's class, as sentence-transformers writes it."""
_ROOM: Final = 128 << 20
_MOST_BYTES: Final = (1 << 31) - _ROOM
"""One message of protobuf holds 2 GiB; room is left for what `weight_bytes` does not count."""
_CROSS: Final = "ForSequenceClassification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What makes one number of the pooled states of a pair of texts.

    Attributes:
        activation: Between its two products.
        normed: Whether what was activated is normed.
        scale: What makes a score of the number: `sigmoid`, between 0 and 1, or `identity`, the number itself.
    """

    activation: HeadActivation
    normed: bool
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """Sizes of a text encoder.

    Attributes:
        family: Its `model_type`.
        vocab, width, layers, heads, hidden: Of the network; `width` is the length of its vectors.
        eps: Of layer normalization.
        max_tokens: Longest input, special tokens included.
        pooling: How the states of a text's tokens become one vector; it is then scaled to length one.
        head: Of a cross-encoder; None for an encoder of sentences.
        first_place: Row of the table of positions that the first token takes (RoBERTa leaves rows out).
        segments: Rows of the table that tells the first text of a pair from the second; 0 without one.
        buckets: Of MPNet, distances that attention tells apart; 0 otherwise.
        thetas: By layer, the base of the angles that tell positions apart (RoPE); empty with a table of positions.
        windows: By layer, how many tokens to each side are seen; 0, or no entry, for all.
        norm_first: Whether norms stand before attention and products, and one at the end; else they stand behind.
        gated: Whether what goes through the activation is multiplied by a second product.
        activation: Between a layer's products.
        unbiased: Parts of a layer without a bias, as BERT's files call them.
        prompt: Stands before every text, as sentence-transformers puts it.
        cuts: Lengths to which its vectors may be cut since it was trained for that (Kusupati et al. 2022); None for any.
    """

    family: str
    vocab: int
    width: int
    layers: int
    heads: int
    hidden: int
    eps: float
    max_tokens: int
    pooling: Pooling
    head: Head | None = None
    first_place: int = 0
    segments: int = 0
    buckets: int = 0
    thetas: tuple[float, ...] = ()
    windows: tuple[int, ...] = ()
    norm_first: bool = False
    gated: bool = False
    activation: Activation = "gelu"
    unbiased: tuple[str, ...] = ()
    prompt: str = ""
    cuts: tuple[int, ...] | None = ()

    @property
    def weight_bytes(self) -> int:
        """Of all weights in float32, tables of positions left out."""
        block = 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.hidden
        return 4 * (self.vocab * self.width + self.layers * block)

    @property
    def given(self) -> bool:
        """Whether its graph is given the table of words when it is opened: with it, it would be too large for one file."""
        return self.weight_bytes > _MOST_BYTES

    @property
    def file_bytes(self) -> int:
        """Of its graph in float32."""
        return self.weight_bytes - (4 * self.vocab * self.width if self.given else 0)

    @property
    def numbers(self) -> int:
        """That are computed of each input: a vector's, or one score."""
        return self.width if self.head is None else 1


def read_shape(files: ModelFiles) -> EncoderShape:
    """Sizes from config.json, pooling and longest input from the files of sentence-transformers where they are.

    Raises:
        UnsupportedModel: Of another family, or with a part that is not supported, by name.
        BadModelFile: A file is damaged.
    """
    if files.format != "safetensors" or "config.json" not in files.paths:
        raise UnsupportedModel(f"{files.name}: a text encoder is a folder with config.json and model.safetensors.")
    raw = read_object(files.paths["config.json"], "config.json")
    try:
        family = family_of(raw)
        sizes: Sizes = family.sizes(raw)
        head = _head(raw, bool(family.head), _optional(files, TOLD_FILE).get("activation_fn"))
    except (BadModelFile, UnsupportedModel) as error:
        raise type(error)(f"{files.name}: {error.message}") from error
    _refuse_modules(files)
    places = sizes.pop("places")
    if not sizes["heads"] or sizes["width"] % sizes["heads"] or places < 1:
        raise BadModelFile(
            f"{files.name}, config.json: {sizes['heads']} heads do not divide {sizes['width']}, or there are no positions."
        )
    shape = EncoderShape(
        family=raw["model_type"],
        max_tokens=_longest(files, places, head),
        pooling=_pooling(files) if head is None else _head_pooling(raw),
        head=head,
        prompt="" if head is not None else _prompt(files),
        cuts=() if head is not None else _cuts(raw),
        **sizes,
    )
    if shape.file_bytes > _MOST_BYTES:
        raise UnsupportedModel(
            f"{files.name}: {mib(shape.file_bytes)} in float32, without its vocabulary, do not fit in one ONNX file of "
            f"{mib(_MOST_BYTES)}."
        )
    _refuse_large_constants(files.name, shape)
    return shape


def _refuse_large_constants(name: str, shape: EncoderShape) -> None:
    """What `attend` makes of config.json alone: no weight in the file shows that a number in there is absurd."""
    most = shape.max_tokens
    if shape.thetas:  # a cosine and a sine for each pair of a head's numbers
        most = _ROOM // (8 * len(set(shape.thetas)) * -(-shape.width // shape.heads // 2))
    if shape.buckets:  # a number for each pair of tokens
        most = isqrt(_ROOM // (4 * shape.heads))
    if shape.max_tokens > most:
        raise UnsupportedModel(
            f"{name}, config.json: the constants for texts of {shape.max_tokens} tokens (max_position_embeddings, n_positions) "
            f"would be larger than {mib(_ROOM)}, enough for {most}. Set max_seq_length in {LIMIT_FILE} to {most} or less."
        )
    near, most = max(shape.windows, default=0), isqrt(_ROOM // 96)  # of 24 * near**2 pairs of tokens
    if near > most:
        raise UnsupportedModel(
            f"{name}, config.json: local_attention lets a token see {near} on each side, and the most is {most}. Correct it "
            "to what the model was trained with."
        )


def is_cross_encoder(raw: Config) -> bool:
    """Whether a configuration is that of a model that classifies; `raw` is config.json."""
    named = raw.get("architectures")
    return isinstance(named, list) and any(str(it).endswith(_CROSS) for it in named)


def _head(raw: Config, known: bool, scale: object) -> Head | None:
    """Of a model that classifies, which must have one label; scored as sentence-transformers' CrossEncoder does.

    Args:
        scale: What its own file names to make scores with.
    """
    if not is_cross_encoder(raw):
        return None
    if not known:
        raise UnsupportedModel(f"cross-encoders of type {raw['model_type']!r} are not supported.")
    labels = raw.get("id2label")
    number = len(labels) if isinstance(labels, Mapping) else count(raw, "num_labels", 2)
    if number != 1:
        raise UnsupportedModel(f"it tells {number} classes apart; a cross-encoder that ranks has one label.")
    activation = _HEADS.get(raw["model_type"], "tanh")
    if raw["model_type"] == "modernbert" and raw.get("classifier_activation", "gelu") != "gelu":
        raise UnsupportedModel(
            f"classifier_activation {raw['classifier_activation']!r} is not supported (only 'gelu')."
        )
    return Head(activation=activation, normed=raw["model_type"] == "modernbert", scale=_scale(raw, scale))


def _scale(raw: Config, named: object) -> Scale:
    newer = raw.get("sentence_transformers")
    named = named or (newer.get("activation_fn") if isinstance(newer, Mapping) else None)
    named = named or raw.get("sbert_ce_default_activation_function")
    if named is None:
        return "sigmoid"
    kind = str(named).rpartition(".")[2]
    if not str(named).startswith("torch.") or kind not in _SCALES:
        raise UnsupportedModel(f"config.json: scores through {named!r} are not supported ({', '.join(_SCALES)} are).")
    return _SCALES[kind]


def _head_pooling(raw: Config) -> Pooling:
    """What the head of a cross-encoder reads."""
    return "mean" if raw["model_type"] == "modernbert" and raw.get("classifier_pooling") == "mean" else "cls"


def _longest(files: ModelFiles, places: int, head: Head | None) -> int:
    """As sentence-transformers has it: of a cross-encoder also what its tokenizer says."""
    asked = [count(_optional(files, LIMIT_FILE), "max_seq_length", places), places]
    told = _optional(files, TOKENIZER_FILE).get("model_max_length") if head is not None else None
    if isinstance(told, int) and told > 0:  # "unbounded" is written as 1e30, a float or a number beyond all others
        asked.append(told)
    return min(asked)


def _optional(files: ModelFiles, name: str) -> Mapping[str, Any]:
    path = files.paths.get(name)
    return {} if path is None else read_object(path, name)


def _pooling(files: ModelFiles) -> Pooling:
    """Without the file the mean, as sentence-transformers takes it."""
    raw = _optional(files, POOLING_FILE)
    named = raw.get("pooling_mode")  # newer files name it, older ones have a switch for each
    on = [key for key, value in raw.items() if key.startswith("pooling_mode_") and value is True]
    modes = on if named is None else [named] if isinstance(named, str) else list(named)
    if modes == []:
        return "mean"
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise UnsupportedModel(f"{files.name}: the pooling {' + '.join(map(str, modes))} is not supported.")
    return _POOLINGS[modes[0]]


def _refuse_modules(files: ModelFiles) -> None:
    """What sentence-transformers would compute besides."""
    path = files.paths.get(MODULES_FILE)
    for one in [] if path is None else read_list(path, MODULES_FILE):
        kind = str(one.get("type", "")).rpartition(".")[2] if isinstance(one, Mapping) else ""
        if kind not in _MODULES:
            raise UnsupportedModel(f"{files.name}, {MODULES_FILE}: a module {kind!r} is not supported.")


def _cuts(raw: Config) -> tuple[int, ...] | None:
    """In the words that vLLM and some published models use; nothing else says it."""
    named = raw.get("matryoshka_dimensions")
    if named is None:
        return None if raw.get("is_matryoshka") is True else ()
    if not isinstance(named, list):
        raise BadModelFile(f"config.json: matryoshka_dimensions is {named!r}, which is no list of counts.")
    return tuple(count({"matryoshka_dimensions": it}, "matryoshka_dimensions") for it in named)


def _prompt(files: ModelFiles) -> str:
    told = _optional(files, TOLD_FILE)
    name, prompts = told.get("default_prompt_name"), told.get("prompts")
    if name is None:
        return ""
    text = prompts.get(name) if isinstance(prompts, Mapping) else None
    if not isinstance(text, str):
        raise BadModelFile(f"{files.name}, {TOLD_FILE}: there is no prompt {name!r}.")
    if text and _optional(files, POOLING_FILE).get("include_prompt") is False:
        raise UnsupportedModel(
            f"{files.name}, {POOLING_FILE}: a prompt that is left out of the pooling is not supported."
        )
    return text
