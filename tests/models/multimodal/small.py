"""Small random models of transformers that see, saved as checkpoints are, and pictures to show them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.loading import EncoderLoader
from edgewise.models.multimodal.protocol import MediaEncoder
from edgewise.models.small_files import read_object
from edgewise.models.tiny import local_files
from edgewise.models.weights.open import open_weights

TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
}


def saved(config: Any, folder: Path) -> tuple[Any, ModelFiles]:
    """A random model with norms and biases away from their trivial values, and its files."""
    torch.manual_seed(11)
    model: Any = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.any():
                parameter.normal_(0, 0.15)
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model, local_files(folder)


def config_of(files: ModelFiles) -> Fields:
    return Fields(read_object(files.paths["config.json"], "config.json"), "config.json")


def encoder_of(files: ModelFiles, load: EncoderLoader) -> MediaEncoder:
    """In float32."""
    with closing(open_weights(files)) as reader:
        return load(
            config_of(files), files, reader, width=TEXT["hidden_size"], device=torch.device("cpu"), dtype=torch.float32
        )


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth shapes with an edge, as photographs have, and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(9 * x * rng.random() + 7 * y * rng.random() + 6 * rng.random()) for _ in range(3)]
    values = 110 + 90 * np.stack(waves, axis=-1) + rng.normal(0, 6, (height, width, 3))
    values[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 255, 3)
    return np.clip(values, 0, 255).astype(np.uint8)
