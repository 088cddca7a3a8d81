"""Qwen2.5-Omni with small random weights, as transformers has it and as a folder of ours."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from edgewise.models.files import ModelFiles
from edgewise.models.omni.config import OmniConfig, read_omni
from edgewise.models.omni.loading import load_code2wav
from edgewise.models.tiny import local_files
from edgewise.models.weights.open import open_weights

WORDS = 290
"""Ids of text; those of markers follow."""
AUDIO, IMAGE, VIDEO, AUDIO_START, AUDIO_END, SEEN_START, SEEN_END = range(WORDS, WORDS + 7)
MARKERS = 10
CODES = 72
CODEC_PAD, CODEC_START, CODEC_END = 72, 73, 74
WIDTH = 64
VOICES = ("Ann", "Ben")
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_DECODER = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "rope_parameters": _ROPE,
}

_DIT = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "head_dim": 16,
    "emb_dim": 16,
    "block_size": 8,
    "look_ahead_layers": [1],
    "look_backward_layers": [0, 2],
    "num_embeds": CODES,
    "mel_dim": 8,
    "enc_emb_dim": 8,
    "enc_dim": 8,
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_attention_channels": 8,
    "enc_se_channels": 8,
    "dropout": 0.0,
}
_VOCODER = {
    "mel_dim": 8,
    "upsample_initial_channel": 16,
    "upsample_rates": [5, 3],
    "upsample_kernel_sizes": [11, 7],
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
}


def config(words: int = WORDS, spoken: int = 4096) -> Any:
    """`spoken`: context of the Talker."""
    names = (
        "audio_token_index",
        "image_token_index",
        "video_token_index",
        "audio_start_token_id",
        "audio_end_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    )
    places = {name: words + at for at, name in enumerate(names)}
    text = {
        **_DECODER,
        "vocab_size": words + MARKERS,
        "hidden_size": WIDTH,
        "intermediate_size": 112,
        "tie_word_embeddings": False,
    }
    audio = {
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "d_model": 32,
        "n_window": 20,
        "output_dim": WIDTH,
        "max_source_positions": 100,
        "initializer_range": 0.1,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 52,
        "num_heads": 4,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [1],
        "initializer_range": 0.1,
    }
    talker = {
        **_DECODER,
        **places,
        "vocab_size": 80,
        "embedding_size": WIDTH,
        "hidden_size": 48,
        "max_position_embeddings": spoken,
        "head_dim": 16,
        "intermediate_size": 72,
        "tts_text_start_token_id": words + 7,
        "tts_text_end_token_id": words + 8,
        "tts_text_pad_token_id": words + 9,
        "tts_codec_start_token_id": CODEC_START,
        "tts_codec_end_token_id": CODEC_END,
        "tts_codec_pad_token_id": CODEC_PAD,
        "tts_codec_mask_token_id": 76,
    }
    return Qwen2_5OmniConfig(
        thinker_config={
            "text_config": text,
            "audio_config": audio,
            "vision_config": vision,
            **places,
            "position_id_per_seconds": 25,
        },
        talker_config=talker,
        token2wav_config={"dit_config": _DIT, "bigvgan_config": _VOCODER},
    )


def small_omni(words: int = WORDS, spoken: int = 4096) -> Any:
    """In float32, norms and biases away from their trivial values."""
    torch.manual_seed(5)
    model = Qwen2_5OmniForConditionalGeneration(config(words, spoken))
    model.train(False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.any() or "norm" in name or "ln_" in name or name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        for part in (model.thinker, model.talker):
            for parameter in part.parameters():
                if parameter.dim() == 2:  # logits that are far apart
                    parameter.mul_(6)
        for name, parameter in model.token2wav.named_parameters():
            if parameter.dim() > 1:  # sound that is heard, and frames that depend on their neighbours
                gain = 0.5 if "conv_post" in name else 1.0
                parameter.normal_(0, gain / parameter[0].numel() ** 0.5)
    model.speaker_map = voices(words)
    return model


def voices(words: int = WORDS) -> dict[str, dict[str, Any]]:
    made = torch.Generator().manual_seed(9)
    return {
        name: {
            "bos_token": words + 7,
            "cond": torch.randn(1, 8, generator=made),
            "ref_mel": torch.randn(1, 30 + 8 * at, 8, generator=made),
        }
        for at, name in enumerate(VOICES)
    }


def folder(model: Any, path: Path) -> ModelFiles:
    """The model as `save_pretrained` writes it, with its voices."""
    model.save_pretrained(path)
    torch.save(model.speaker_map, path / "spk_dict.pt")
    return local_files(path)


def code2wav_of(files: ModelFiles) -> Any:
    with closing(open_weights(files)) as reader:
        return load_code2wav(read_omni(files), files, reader, device=torch.device("cpu"))


def config_of(files: ModelFiles) -> OmniConfig:
    return read_omni(files)
