"""What a Qwen2.5-Omni model looks like, read from its config.json. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES, DecoderConfig
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.small_files import read_object

ARCHITECTURES: Final = ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel")
"""The published checkpoints say the second."""
SAMPLE_RATE: Final = 24_000
DECODER_DEFAULTS: Final[Mapping[str, Any]] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig:
    """The decoder of codec tokens.

    Attributes:
        width: Of the rows that the Thinker hands over, and of the codec's embeddings in the file.
        text_start, text_end, text_pad: Ids of the Thinker's vocabulary: before the answer, behind it, and after that.
        codes: Codec tokens that stand for sound.
        codec_start, codec_end, codec_pad, codec_mask: Ids of the codec's vocabulary; sound ends with `codec_end` or `codec_pad`,
            `codec_mask` stands beside rows that no codec token goes in with.
    """

    decoder: DecoderConfig
    width: int
    text_start: int
    text_end: int
    text_pad: int
    codes: int
    codec_start: int
    codec_end: int
    codec_pad: int
    codec_mask: int

    @property
    def soundless(self) -> tuple[int, ...]:
        """Ids that stand neither for sound nor for its end."""
        return tuple(token for token in range(self.codes, self.decoder.vocab_size) if token not in self.ends)

    @property
    def ends(self) -> tuple[int, ...]:
        return (self.codec_pad, self.codec_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerConfig:
    """Of the network that hears a voice's sample (ECAPA-TDNN)."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int
    squeeze: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiTConfig:
    """The flow matching network: codec tokens to mel frames.

    Attributes:
        block: Mel frames that attend to each other in every layer.
        ahead, back: Layers that also see the next block, and the one before.
        repeats: Mel frames of one codec token.
        codes: Codec tokens that stand for sound.
        voice: Width of a voice's vector.
    """

    width: int
    layers: int
    heads: int
    head_dim: int
    inner: int
    embedding: int
    block: int
    ahead: frozenset[int]
    back: frozenset[int]
    repeats: int
    codes: int
    mels: int
    voice: int
    theta: float
    max_frames: int
    speaker: SpeakerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderConfig:
    """BigVGAN (Lee et al. 2022): mel frames to samples."""

    mels: int
    channels: int
    kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    rates: tuple[int, ...]
    rate_kernels: tuple[int, ...]

    @property
    def hop(self) -> int:
        """Samples of one mel frame."""
        return math.prod(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniConfig:
    """All parts.

    Attributes:
        thinker: The decoder of text.
        placeholders: Ids of the Thinker's vocabulary that stand for media.
    """

    thinker: DecoderConfig
    talker: TalkerConfig
    dit: DiTConfig
    vocoder: VocoderConfig
    placeholders: Mapping[MediaKind, int]

    @property
    def frames_per_second(self) -> float:
        """Of the mel spectrogram."""
        return SAMPLE_RATE / self.vocoder.hop

    @property
    def tokens_per_second(self) -> float:
        """Codec tokens of a second of sound."""
        return self.frames_per_second / self.dit.repeats

    @property
    def block_tokens(self) -> int:
        """Codec tokens of one block of the flow matching network."""
        return self.dit.block // self.dit.repeats


def read_omni(files: ModelFiles) -> OmniConfig:
    """Of a model on disk.

    Raises:
        UnsupportedModel: Another architecture, or one without a Talker.
        BadModelFile: A number is missing or impossible.
        StorageError: The file cannot be read.
    """
    path = files.paths.get(CONFIG_NAME)
    if path is None:
        raise BadModelFile(f"{files.name}: {CONFIG_NAME} is missing.")
    return parse_omni(Fields(read_object(path, CONFIG_NAME, most=MAX_CONFIG_BYTES), CONFIG_NAME))


def parse_omni(config: Fields) -> OmniConfig:
    """Raises as `read_omni`."""
    named = config.get("architectures") or []
    if not named or named[0] not in ARCHITECTURES:
        raise config.unsupported("architectures", " or ".join(ARCHITECTURES))
    if not config.flag("enable_audio_output", True):
        raise UnsupportedModel(
            f"{config.where}: 'enable_audio_output' is false: this model has no Talker and answers in text alone."
        )
    thinker = section(config, "thinker_config")
    talker, wave = section(config, "talker_config"), section(config, "token2wav_config")
    text = section(thinker, "text_config")
    dit = _dit(section(wave, "dit_config"))
    omni = OmniConfig(
        thinker=_decoder(text, tied=thinker.flag("tie_word_embeddings", False)),
        talker=_talker(talker, dit.codes),
        dit=dit,
        vocoder=_vocoder(section(wave, "bigvgan_config")),
        placeholders=placeholders(thinker),
    )
    if omni.talker.width != omni.thinker.hidden_size:
        raise talker.bad("embedding_size", f"the Thinker's width, {omni.thinker.hidden_size}")
    if omni.dit.mels != omni.vocoder.mels or omni.dit.block % omni.dit.repeats:
        raise BadModelFile(f"{config.where}: the parts of 'token2wav_config' do not fit together.")
    return omni


def placeholders(thinker: Fields) -> dict[MediaKind, int]:
    """Id of the token that is repeated for a medium of a kind. Raises `BadModelFile`."""
    return {
        "image": thinker.size("image_token_index", 151655),
        "video": thinker.size("video_token_index", 151656),
        "audio": thinker.size("audio_token_index", 151646),
    }


def section(fields: Fields, key: str) -> Fields:
    """An object within an object.

    Raises:
        BadModelFile: It is missing or no object.
    """
    found = fields.get(key)
    if not isinstance(found, Mapping):
        raise fields.bad(key, "an object")
    return Fields(found, f"{fields.where}: '{key}'")


def _decoder(fields: Fields, *, tied: bool) -> DecoderConfig:
    kept = {key: value for key, value in fields.values.items() if key != "architectures" and value is not None}
    said = {**DECODER_DEFAULTS, **kept, "model_type": "qwen2", "tie_word_embeddings": tied}
    return DecoderConfig.from_hf(said, name=fields.where)


def _talker(fields: Fields, codes: int) -> TalkerConfig:
    return TalkerConfig(
        decoder=_decoder(fields, tied=False),
        width=fields.size("embedding_size", 3584),
        text_start=fields.size("tts_text_start_token_id", 151860),
        text_end=fields.size("tts_text_end_token_id", 151861),
        text_pad=fields.size("tts_text_pad_token_id", 151859),
        codes=codes,
        codec_start=fields.size("tts_codec_start_token_id", 8293),
        codec_end=fields.size("tts_codec_end_token_id", 8294),
        codec_pad=fields.size("tts_codec_pad_token_id", 8292),
        codec_mask=fields.size("tts_codec_mask_token_id", 8296),
    )


def _dit(fields: Fields) -> DiTConfig:
    """Older files call sizes by other names."""
    rope = Fields(fields.get("rope_parameters") or {}, fields.where)
    width, layers = (
        fields.size("hidden_size", fields.get("dim", 1024)),
        fields.size("num_hidden_layers", fields.get("depth", 22)),
    )
    channels = _sizes(fields, "enc_channels", (256, 256, 256, 256, 768))
    speaker = SpeakerConfig(
        channels=channels,
        kernels=_sizes(fields, "enc_kernel_sizes", (5, 3, 3, 3, 1)),
        dilations=_sizes(fields, "enc_dilations", (1, 2, 3, 4, 1)),
        attention=fields.size("enc_attention_channels", 64),
        scale=fields.size("enc_res2net_scale", 2),
        squeeze=fields.size("enc_se_channels", 64),
        outputs=fields.size("enc_dim", 128),
    )
    if not len(channels) == len(speaker.kernels) == len(speaker.dilations) > 1:
        raise fields.bad("enc_channels", "as long as 'enc_kernel_sizes' and 'enc_dilations'")
    return DiTConfig(
        width=width,
        layers=layers,
        heads=fields.size("num_attention_heads", fields.get("heads", 16)),
        head_dim=fields.size("head_dim", 64),
        inner=width * fields.size("ff_mult", 2),
        embedding=fields.size("emb_dim", 512),
        block=fields.size("block_size", 24),
        ahead=frozenset(_places(fields, "look_ahead_layers", [10])),
        back=frozenset(_places(fields, "look_backward_layers", [0, 20])),
        repeats=fields.size("repeats", 2),
        codes=fields.size("num_embeds", 8193),
        mels=fields.size("mel_dim", 80),
        voice=fields.size("enc_emb_dim", 192),
        theta=rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0)),
        max_frames=fields.size("max_position_embeddings", 32768),
        speaker=speaker,
    )


def _vocoder(fields: Fields) -> VocoderConfig:
    kernels = _sizes(fields, "resblock_kernel_sizes", (3, 7, 11))
    dilations = fields.get("resblock_dilation_sizes", [[1, 3, 5]] * len(kernels))
    if not isinstance(dilations, list) or len(dilations) != len(kernels):
        raise fields.bad("resblock_dilation_sizes", f"{len(kernels)} lists")
    rates = _sizes(fields, "upsample_rates", (5, 3, 2, 2, 2, 2))
    rate_kernels = _sizes(fields, "upsample_kernel_sizes", (11, 7, 4, 4, 4, 4))
    if len(rates) != len(rate_kernels):
        raise fields.bad("upsample_kernel_sizes", f"{len(rates)} whole numbers")
    return VocoderConfig(
        mels=fields.size("mel_dim", 80),
        channels=fields.size("upsample_initial_channel", 1536),
        kernels=kernels,
        dilations=tuple(_sizes(Fields({"dilations": one}, fields.where), "dilations", ()) for one in dilations),
        rates=rates,
        rate_kernels=rate_kernels,
    )


def _sizes(fields: Fields, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = fields.get(key, list(default))
    if not isinstance(values, list) or not values or len(values) > 64:
        raise fields.bad(key, "a list of whole numbers above 0")
    return tuple(Fields({key: value}, fields.where).size(key) for value in values)


def _places(fields: Fields, key: str, default: list[int]) -> list[int]:
    values = fields.get(key, default)
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise fields.bad(key, "a list of layers")
    return values
