"""The voices of a Qwen2.5-Omni model, from its spk_dict.pt."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.omni.config import OmniConfig

FILE: Final = "spk_dict.pt"


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """Attributes:
    start: The Thinker's token that the Talker reads before the answer in this voice.
    vector: [voice width] float32.
    sample: [frames, mels] float32, its sound.
    """

    name: str
    start: int
    vector: torch.Tensor
    sample: torch.Tensor


def read_voices(files: ModelFiles, config: OmniConfig) -> dict[str, Voice]:
    """By name. The file is a pickle, of which tensors and plain values alone are read.

    Raises:
        BadModelFile: It is missing, no such file, or does not fit the model.
    """
    path = files.paths.get(FILE)
    if path is None:
        raise BadModelFile(f"{files.name}: {FILE} is missing, which holds the model's voices.")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise BadModelFile(f"{files.name}: {FILE} cannot be read: {error}") from error
    if not isinstance(stored, Mapping) or not stored:
        raise BadModelFile(f"{files.name}: {FILE} holds no voices.")
    return {str(name): _voice(str(name), value, files.name, config) for name, value in stored.items()}


def _voice(name: str, stored: Any, model: str, config: OmniConfig) -> Voice:
    if not isinstance(stored, Mapping):
        raise BadModelFile(f"{model}: {FILE}: voice '{name}' is no mapping.")
    start, vector, sample = (stored.get(key) for key in ("bos_token", "cond", "ref_mel"))
    if not isinstance(start, int) or not 0 <= start < config.thinker.vocab_size:
        raise BadModelFile(f"{model}: {FILE}: voice '{name}' has no 'bos_token' of the vocabulary.")
    if not isinstance(vector, torch.Tensor) or vector.numel() != config.dit.voice:
        raise BadModelFile(f"{model}: {FILE}: 'cond' of voice '{name}' is no vector of {config.dit.voice}.")
    if not isinstance(sample, torch.Tensor) or sample.dim() < 2 or sample.shape[-1] != config.dit.mels:
        raise BadModelFile(f"{model}: {FILE}: 'ref_mel' of voice '{name}' has no frames of {config.dit.mels} bands.")
    return Voice(name, start, vector.flatten().float(), sample.reshape(-1, config.dit.mels).float())
