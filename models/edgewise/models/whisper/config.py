"""Sizes and control tokens of a Whisper model, from its files alone. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.kernels.limits import PAGE_TOKENS, round_up
from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.hf_fields import MAX_HEADS, MAX_LAYERS
from edgewise.models.files import ModelFiles
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.small_files import read_object

ARCHITECTURE: Final = "WhisperForConditionalGeneration"
GENERATION_NAME: Final = "generation_config.json"
SECONDS: Final = 30.0
"""That the encoder sees at once."""
HOP: Final = 160
"""Samples between two frames of the spectrogram; the encoder makes one of two."""
TIME_STEP: Final = 0.02
"""Seconds between two times that the model can write."""
TIMES: Final = 1501


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperSizes(LongTailConfig):
    """What the engine must know of a Whisper to divide memory: a sequence is a recording and then text.

    Attributes:
        width: Of a row of the encoder.
        audio_tokens: Placeholders of the recording that every prompt begins with.
        encoder_floats: Upper bound of what encoding one recording allocates.
    """

    width: int
    audio_tokens: int
    encoder_floats: int

    def workspace_bytes(self, max_step_tokens: int, max_running: int) -> int:
        """As `LongTailConfig.workspace_bytes`, and what the encoder needs."""
        return LongTailConfig.workspace_bytes(self, max_step_tokens, max_running) + 4 * self.encoder_floats


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """Attributes:
    mels: Bands of the spectrogram.
    frames: Of sound that the decoder sees, 50 a second.
    max_text: Tokens of a text, its prompt included.
    """

    vocab_size: int
    width: int
    mels: int
    encoder_layers: int
    encoder_heads: int
    encoder_inner: int
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    frames: int
    max_text: int

    @property
    def head_dim(self) -> int:
        """Of the decoder."""
        return self.width // self.decoder_heads

    @property
    def audio_tokens(self) -> int:
        """Placeholders of a recording in a prompt: its frames, filled up to whole pages."""
        return round_up(self.frames, PAGE_TOKENS)

    @property
    def elements(self) -> int:
        """Parameters."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    def sizes(self) -> WhisperSizes:
        """What the engine must know of it."""
        scores = self.encoder_heads * self.frames**2  # of one layer of the encoder, whose memory is free again after it
        return WhisperSizes(
            architecture=ARCHITECTURE,
            vocab_size=self.vocab_size,
            max_position=self.audio_tokens + self.max_text,
            kv_heads=(self.decoder_heads,) * self.decoder_layers,
            head_dims=(self.head_dim,) * self.decoder_layers,
            windows=(None,) * self.decoder_layers,
            elements=self.elements,
            fixed_bytes=0,
            row_floats=8 * self.width + 2 * self.decoder_inner,
            width=self.width,
            audio_tokens=self.audio_tokens,
            encoder_floats=self.frames * (8 * self.width + 2 * self.encoder_inner) + scores,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, by its name in the file."""
        width = self.width
        found: dict[str, tuple[int, ...]] = {
            "model.encoder.conv1.weight": (width, self.mels, 3),
            "model.encoder.conv1.bias": (width,),
            "model.encoder.conv2.weight": (width, width, 3),
            "model.encoder.conv2.bias": (width,),
            "model.encoder.embed_positions.weight": (self.frames, width),
            "model.decoder.embed_tokens.weight": (self.vocab_size, width),
            "model.decoder.embed_positions.weight": (self.max_text, width),
        }
        for kind, layers, inner, attentions in (
            ("encoder", self.encoder_layers, self.encoder_inner, ("self_attn",)),
            ("decoder", self.decoder_layers, self.decoder_inner, ("self_attn", "encoder_attn")),
        ):
            for index in range(layers):
                layer = f"model.{kind}.layers.{index}"
                for attention in attentions:
                    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                        found[f"{layer}.{attention}.{part}.weight"] = (width, width)
                        if part != "k_proj":
                            found[f"{layer}.{attention}.{part}.bias"] = (width,)
                    found |= _norm(f"{layer}.{attention}_layer_norm", width)
                found[f"{layer}.fc1.weight"], found[f"{layer}.fc1.bias"] = (inner, width), (inner,)
                found[f"{layer}.fc2.weight"], found[f"{layer}.fc2.bias"] = (width, inner), (width,)
                found |= _norm(f"{layer}.final_layer_norm", width)
            found |= _norm(f"model.{kind}.layer_norm", width)
        return found


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def is_whisper(files: ModelFiles) -> bool:
    """Whether config.json says so."""
    if CONFIG_NAME not in files.paths:
        return False
    named = read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES).get("architectures")
    return named == [ARCHITECTURE]


def read_whisper(files: ModelFiles) -> WhisperConfig:
    """The configuration.

    Raises:
        BadModelFile, StorageError: config.json is damaged, missing or cannot be read.
        UnsupportedModel: A variant that is not implemented, by name.
    """
    if CONFIG_NAME not in files.paths:
        raise BadModelFile(f"{files.name}: config.json is missing.")
    fields = Fields(read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES), CONFIG_NAME)
    if fields.get("activation_function", "gelu") != "gelu":
        raise UnsupportedModel(
            f"{CONFIG_NAME}: 'activation_function' is {fields.get('activation_function')!r}: only gelu is."
        )
    if fields.flag("scale_embedding", False):
        raise UnsupportedModel(f"{CONFIG_NAME}: 'scale_embedding' is true, which is not supported.")
    config = WhisperConfig(
        vocab_size=fields.size("vocab_size"),
        width=fields.size("d_model"),
        mels=fields.size("num_mel_bins", 80, 1024),
        encoder_layers=fields.size("encoder_layers", most=MAX_LAYERS),
        encoder_heads=fields.size("encoder_attention_heads", most=MAX_HEADS),
        encoder_inner=fields.size("encoder_ffn_dim"),
        decoder_layers=fields.size("decoder_layers", most=MAX_LAYERS),
        decoder_heads=fields.size("decoder_attention_heads", most=MAX_HEADS),
        decoder_inner=fields.size("decoder_ffn_dim"),
        frames=fields.size("max_source_positions", 1500, 1 << 16),
        max_text=fields.size("max_target_positions", 448, 1 << 16),
    )
    if config.width % config.encoder_heads or config.width % config.decoder_heads:
        raise BadModelFile(f"{CONFIG_NAME}: 'd_model' is {config.width}, no multiple of its numbers of heads.")
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperTokens:
    """Control tokens, and what is never written.

    Attributes:
        end, start: Of a text and of what it is told.
        previous: Before text that came earlier.
        no_speech: Its probability after `start` says that nobody speaks.
        no_times: Says that the text shall have no times.
        first_time: Of 0.00; the next 1,500 ids are each `TIME_STEP` later.
        languages: By code; empty in a model for English alone.
        transcribe, translate: What is to be done; None in a model for English alone.
        suppressed, suppressed_first: Ids that are never written, and that no text begins with.
    """

    end: int
    start: int
    previous: int
    no_speech: int
    no_times: int
    first_time: int
    languages: dict[str, int]
    transcribe: int | None
    translate: int | None
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    first_time_limit: int = 50

    @property
    def multilingual(self) -> bool:
        return bool(self.languages)


def read_tokens(files: ModelFiles) -> WhisperTokens:
    """Control tokens by generation_config.json. Raises BadModelFile, StorageError."""
    if GENERATION_NAME not in files.paths:
        raise BadModelFile(f"{files.name}: {GENERATION_NAME} is missing, which names the control tokens.")
    fields = Fields(read_object(files.paths[GENERATION_NAME], GENERATION_NAME, most=MAX_CONFIG_BYTES), GENERATION_NAME)
    no_times = fields.size("no_timestamps_token_id")
    languages = {code.strip("<|>"): id for code, id in fields.get("lang_to_id", {}).items()}
    tasks = fields.get("task_to_id", {})
    try:
        return WhisperTokens(
            end=fields.size("eos_token_id"),
            start=fields.size("decoder_start_token_id"),
            previous=fields.size("prev_sot_token_id", no_times - 2),
            no_speech=no_times - 1,
            no_times=no_times,
            first_time=no_times + 1,
            languages={code: int(id) for code, id in languages.items()},
            transcribe=tasks.get("transcribe") if languages else None,
            translate=tasks.get("translate") if languages else None,
            suppressed=_ids(fields, "suppress_tokens"),
            suppressed_first=_ids(fields, "begin_suppress_tokens"),
            first_time_limit=fields.size("max_initial_timestamp_index", 50),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise BadModelFile(f"{GENERATION_NAME} is damaged: {error}.") from error


def _ids(fields: Fields, key: str) -> tuple[int, ...]:
    given: Any = fields.get(key, [])
    return tuple(int(id) for id in given)
