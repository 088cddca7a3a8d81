"""Open the weights of a model, whatever their format."""

from __future__ import annotations

from edgewise.models.files import ModelFiles
from edgewise.models.weights.gguf_reader import GGUFReader
from edgewise.models.weights.reader import WeightReader
from edgewise.models.weights.safetensors import SafetensorsReader


def open_weights(files: ModelFiles) -> WeightReader:
    """A reader of the model's tensors; the caller closes it.

    Raises:
        BadModelFile: A header is damaged or hostile, or files are missing; the message names file and byte.
        StorageError: A file cannot be opened.
    """
    return GGUFReader(files) if files.format == "gguf" else SafetensorsReader(files)
