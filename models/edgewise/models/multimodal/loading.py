"""Loads a model that sees or hears: the decoder as any other, and what it sees with beside it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from contextlib import closing
from typing import Protocol, cast

import torch

from edgewise.models.decoder.config import CONFIG_NAME, MAX_CONFIG_BYTES
from edgewise.models.decoder.fields import Fields
from edgewise.models.decoder.loading import fill_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.native.loading import fill_native
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.multimodal.protocol import MediaEncoder
from edgewise.models.small_files import read_object
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import WeightReader


class EncoderLoader(Protocol):
    """What `Family.encoder` names."""

    def __call__(
        self,
        config: Fields,
        files: ModelFiles,
        reader: WeightReader,
        *,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> MediaEncoder:
        """Args:
            config: The whole config.json.
            reader: Open, and left open.
            width: Of the decoder, and of the rows that the encoder makes.

        Raises:
            UnsupportedModel, BadModelFile: By name.
        """


class MultimodalDecoder:
    """A `MultimodalNetwork`, and what the engine asks of a loaded network besides."""

    def __init__(self, decoder: Decoder | NativeDecoder, encoder: MediaEncoder) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.forward = decoder.forward
        self.logits = decoder.logits
        self.prove_rows = decoder.prove_rows

    def __repr__(self) -> str:
        return f"MultimodalDecoder({self.decoder!r}, {type(self.encoder).__name__})"


def load_multimodal(
    files: ModelFiles,
    network: MultimodalConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[float], None] | None = None,
    native: Quantize | None = None,
) -> MultimodalDecoder:
    """As `load_decoder`, or with `native` as `load_native` packed so. What is loaded beside the decoder is not counted by
    `progress`.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `load_decoder`.
    """
    config = Fields(read_object(files.paths[CONFIG_NAME], CONFIG_NAME, most=MAX_CONFIG_BYTES), CONFIG_NAME)
    module, _, name = network.encoder.partition(":")
    load = cast("EncoderLoader", getattr(importlib.import_module(module), name))
    with closing(open_weights(files)) as reader:
        encoder = load(config, files, reader, width=network.text.hidden_size, device=device, dtype=dtype)
        text, other = network.text, re.compile(network.other)
        decoder: Decoder | NativeDecoder
        if native is None:
            decoder = fill_decoder(text, reader, files, device=device, dtype=dtype, progress=progress, other=other)
        else:
            name = str(dtype).removeprefix("torch.")
            decoder = fill_native(text, reader, files, dtype=name, quantize=native, progress=progress, other=other)
    return MultimodalDecoder(decoder, encoder)
