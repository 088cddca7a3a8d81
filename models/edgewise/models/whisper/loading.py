"""Load a Whisper model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.whisper.alignment_heads import alignment_heads
from edgewise.models.whisper.config import read_whisper
from edgewise.models.whisper.network import WhisperNetwork

_HEAD = "proj_out.weight"
"""The embedding again, in files that repeat it."""


def load_whisper(
    files: ModelFiles, *, device: torch.device, dtype: torch.dtype, progress: Callable[[float], None] | None = None
) -> WhisperNetwork:
    """Encoder and decoder.

    Args:
        device, dtype, progress: As for `decoder.loading.load_decoder`.

    Raises:
        BadModelFile: A tensor is missing or of another shape, by name.
        UnsupportedModel, StorageError: As `read_whisper`.
    """
    config = read_whisper(files)
    wanted = config.shapes()
    tensors: dict[str, torch.Tensor] = {}
    with closing(open_weights(files)) as reader:
        for number, (name, shape) in enumerate(wanted.items()):
            info = reader.tensors.get(name)
            if info is None or info.shape != shape:
                found = "missing" if info is None else str(info.shape)
                raise BadModelFile(f"{files.name}: the tensor '{name}' is {found}; {shape} is expected.")
            out = torch.empty(shape, dtype=dtype)
            reader.read_into(name, out)
            tensors[name] = out.to(device)
            if progress is not None:
                progress((number + 1) / len(wanted))
        left_over = sorted(reader.tensors.keys() - wanted.keys() - {_HEAD})
    if left_over:
        raise BadModelFile(f"{files.name}: the tensor '{left_over[0]}' has no place in this configuration.")
    return WhisperNetwork(config, tensors, alignment_heads(files, config))
