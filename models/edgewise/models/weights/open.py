"""Open the weights of a model, whatever their format."""

from __future__ import annotations

from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from edgewise.models.weights.gguf_reader import GGUFReader
from edgewise.models.weights.quantization import parse_quantization
from edgewise.models.weights.quantized import QuantizedReader
from edgewise.models.weights.reader import WeightReader
from edgewise.models.weights.safetensors import SafetensorsReader

_CONFIG = "config.json"
_MAX_CONFIG = 4 << 20


def open_weights(files: ModelFiles) -> WeightReader:
    """A reader of the model's tensors; the caller closes it.

    Raises:
        UnsupportedModel: config.json names a quantization that cannot be read, by name.
        BadModelFile: A header is damaged or hostile, or files are missing; the message names file and byte.
        StorageError: A file cannot be opened.
    """
    if files.format == "gguf":
        return GGUFReader(files)
    config = files.paths.get(_CONFIG)
    scheme = None if config is None else parse_quantization(read_object(config, _CONFIG, most=_MAX_CONFIG), _CONFIG)
    return SafetensorsReader(files) if scheme is None else QuantizedReader(files, scheme)
