"""Configurations as they are published: what is read from them. Weights are not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgewise.models.multimodal.config import read_multimodal
from edgewise.models.multimodal.families import family_of, read_layout
from edgewise.models.multimodal.gemma3 import Gemma3Layout
from edgewise.models.multimodal.idefics3 import Idefics3Layout
from edgewise.models.multimodal.qwen import MOST_TOKENS, QwenLayout
from edgewise.models.multimodal.towers import gemma3, idefics3, qwen
from edgewise.models.tiny import local_files
from edgewise.models.weights.write import write_safetensors
from tests.models.multimodal.small import config_of, picture

QWEN2_VL_2B: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2_vl",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.41.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": 1536,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
}
QWEN25_VL_3B: dict[str, Any] = {
    **{key: value for key, value in QWEN2_VL_2B.items() if key not in ("vision_config", "architectures")},
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}
QWEN_PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
}
SMOLVLM_256M: dict[str, Any] = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "image_token_id": 49190,
    "model_type": "idefics3",
    "scale_factor": 4,
    "text_config": {
        "architectures": ["VLlama3ForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "neftune_noise_alpha": 0.0,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "torch_dtype": "bfloat16",
        "use_resampler": False,
        "vocab_size": 49280,
    },
    "tie_word_embeddings": False,
    "use_cache": False,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "max_image_size": {"longest_edge": 512},
        "model_type": "idefics3",
        "num_attention_heads": 12,
        "patch_size": 16,
        "size": {"longest_edge": 2048},
        "tie_word_embeddings": False,
    },
    "vocab_size": 49280,
}
SMOLVLM_PROCESSOR = {
    "do_image_splitting": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": 512},
    "size": {"longest_edge": 2048},
}
GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
GEMMA3_PROCESSOR = {"size": {"height": 896, "width": 896}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def written(folder: Path, config: dict[str, Any], processor: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    write_safetensors(folder / "model.safetensors", [], {"format": "pt"})
    return local_files(folder)


@pytest.mark.parametrize(
    ("config", "processor", "layers"),
    [
        (QWEN2_VL_2B, QWEN_PROCESSOR, 28),
        (QWEN25_VL_3B, QWEN_PROCESSOR, 36),
        (SMOLVLM_256M, SMOLVLM_PROCESSOR, 30),
        (GEMMA3_4B, GEMMA3_PROCESSOR, 34),
    ],
)
def test_the_decoder_is_read(config: dict[str, Any], processor: dict[str, Any], layers: int, tmp_path: Path) -> None:
    found = read_multimodal(written(tmp_path, config, processor))
    assert found is not None
    assert found.num_layers == layers
    assert found.kinds[0] == "image"
    assert 0 < found.tower_workspace < 2 << 30


@pytest.mark.parametrize(("config", "per_second", "gated"), [(QWEN2_VL_2B, 0, False), (QWEN25_VL_3B, 2, True)])
def test_qwen(config: dict[str, Any], per_second: float, gated: bool, tmp_path: Path) -> None:
    files = written(tmp_path, config, QWEN_PROCESSOR)
    layout, tower = read_layout(files), qwen.read_tower_config(config_of(files))
    assert isinstance(layout, QwenLayout)
    assert (layout.side, layout.depth, layout.per_second) == (28, 2, per_second)
    assert layout.placeholders == {"image": 151655, "video": 151656}
    assert layout.picture_bounds.least == 3136
    assert layout.picture_bounds.most == MOST_TOKENS * 28 * 28  # bounded by us
    assert (tower.layers, tower.width, tower.heads, tower.gated) == (32, 1280, 16, gated)
    assert tower.inner == (3420 if gated else 5120)
    assert (tower.window, tower.whole_layers) == ((112, frozenset({7, 15, 23, 31})) if gated else (None, frozenset()))


def test_smolvlm(tmp_path: Path) -> None:
    files = written(tmp_path, SMOLVLM_256M, SMOLVLM_PROCESSOR)
    layout, tower = read_layout(files), idefics3.read_tower_config(config_of(files))
    assert isinstance(layout, Idefics3Layout)
    assert (layout.tile, layout.longest, layout.count, layout.splits) == (512, 2048, 64, True)
    assert (tower.siglip.layers, tower.siglip.width, tower.siglip.inner, tower.patches) == (12, 768, 3072, 32)
    assert len(layout.picture(picture(640, 480), "image").media) == 13  # 4 x 3 tiles and the whole


def test_gemma3(tmp_path: Path) -> None:
    files = written(tmp_path, GEMMA3_4B, GEMMA3_PROCESSOR)
    layout, tower = read_layout(files), gemma3.read_tower_config(config_of(files))
    assert isinstance(layout, Gemma3Layout)
    assert (layout.side, layout.count, layout.placeholders) == (896, 256, {"image": 262144})
    assert (tower.patches, tower.across, tower.siglip.layers) == (64, 16, 27)


def test_a_model_without_eyes_has_no_family(tmp_path: Path) -> None:
    files = written(tmp_path, {"architectures": ["LlamaForCausalLM"]}, {})
    assert family_of(files) is None
    assert read_layout(files) is None
