"""Tiny random pipelines of diffusers, complete on disk, in the shapes of SDXL, SD3, FLUX.1 and Qwen-Image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusers as untyped_diffusers
import torch
import transformers as untyped_transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from edgewise.models.files import ModelFiles

diffusers: Any = untyped_diffusers
transformers: Any = untyped_transformers

_CHANNELS = 4
_SD3_CHANNELS = 16  # diffusers takes any other number for an inpainting network


def files_of(folder: Path) -> ModelFiles:
    """A pipeline's folder as the store would resolve it; the digest is none."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return ModelFiles(name="tiny", digest="sha256:00", format="safetensors", paths=paths)


def clip_tokenizer(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16, pad_token="<|endoftext|>"
    )


def clip(projection: int = 32) -> Any:
    return transformers.CLIPTextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        projection_dim=projection,
        bos_token_id=52,
        eos_token_id=53,
        pad_token_id=53,
    )


def vae(channels: int, *, shift: float | None, levels: int = 2) -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(8,) * levels,
        norm_num_groups=4,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        latent_channels=channels,
        sample_size=32,
        scaling_factor=1.0,
        shift_factor=shift,
        use_quant_conv=shift is None,
        use_post_quant_conv=shift is None,
    )


def sdxl(folder: Path, levels: int = 2, channels: int = _CHANNELS) -> None:
    """`levels` of the image decoder: its latents are 16 x 16, its pictures 16 * 2 ** (levels - 1) pixels wide and high.
    `channels`: What the denoiser takes."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=16,
        in_channels=channels,
        out_channels=_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=80,
        cross_attention_dim=64,
        norm_num_groups=4,
    )
    diffusers.StableDiffusionXLPipeline(
        unet=unet,
        vae=vae(_CHANNELS, shift=None, levels=levels),
        scheduler=diffusers.EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        text_encoder=transformers.CLIPTextModel(clip()),
        text_encoder_2=transformers.CLIPTextModelWithProjection(clip()),
        tokenizer=clip_tokenizer(folder / "t1"),
        tokenizer_2=clip_tokenizer(folder / "t2"),
    ).save_pretrained(folder / "pipe")


def sd3(folder: Path) -> None:
    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=_SD3_CHANNELS,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=_SD3_CHANNELS,
    )
    diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        vae=vae(_SD3_CHANNELS, shift=0.1),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=transformers.CLIPTextModelWithProjection(clip()),
        text_encoder_2=transformers.CLIPTextModelWithProjection(clip()),
        text_encoder_3=None,
        tokenizer=clip_tokenizer(folder / "t1"),
        tokenizer_2=clip_tokenizer(folder / "t2"),
        tokenizer_3=None,
    ).save_pretrained(folder / "pipe")


def schnell(folder: Path) -> None:
    flux(folder, distilled=False)


def flux(folder: Path, distilled: bool = True) -> None:
    """`distilled`: guidance is an input, and noise levels depend on the size; else as FLUX.1 schnell."""
    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * _CHANNELS,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=distilled,
    )
    letters = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((chr(code), -1.0) for code in range(97, 123))]
    raw = Tokenizer(models.Unigram(letters, unk_id=2))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    t5 = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4)
    diffusers.FluxPipeline(
        transformer=transformer,
        vae=vae(_CHANNELS, shift=0.1),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=distilled),
        text_encoder=transformers.CLIPTextModel(clip()),
        text_encoder_2=transformers.T5EncoderModel(t5),
        tokenizer=clip_tokenizer(folder / "t1"),
        tokenizer_2=transformers.T5TokenizerFast(tokenizer_object=raw, model_max_length=16, extra_ids=0),
    ).save_pretrained(folder / "pipe")


def qwen(folder: Path) -> None:
    torch.manual_seed(0)
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * _CHANNELS,
        out_channels=_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(8, 4, 4),
    )
    coder = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=_CHANNELS,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 2.0, 0.5, 1.5],
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: place for place, word in enumerate([*alphabet, "<|endoftext|>", "<|im_start|>", "<|im_end|>"])}
    reader = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    }
    sight = {"depth": 1, "hidden_size": 32, "intermediate_size": 37, "num_heads": 4, "out_hidden_size": 32}
    config = transformers.Qwen2_5_VLConfig(text_config=reader, vision_config=sight)
    diffusers.QwenImagePipeline(
        transformer=transformer,
        vae=coder,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        text_encoder=transformers.Qwen2_5_VLForConditionalGeneration(config),
        tokenizer=transformers.Qwen2Tokenizer(vocab=vocabulary, merges=[]),
    ).save_pretrained(folder / "pipe", max_shard_size="150KB")  # large ones come in shards
