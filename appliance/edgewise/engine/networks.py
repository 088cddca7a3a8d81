"""Which code runs a model: our decoder, with or without eyes, or transformers over our pages.

The latter is imported only when a model needs it.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.engine.runner import Network
from edgewise.kernels.compiled import compiled
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.files import ModelFiles
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.longtail.estimate import read_network
from edgewise.models.longtail.outline import require_transformers
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.multimodal.loading import load_multimodal
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.whisper.config import WhisperSizes
from edgewise.models.whisper.loading import load_whisper

_LONG_TAIL = "edgewise.models.longtail.network"


class LoadedNetwork(Network, Protocol):
    """A network that can say whether a token's bits depend on the batch."""

    def prove_rows(self) -> bool:
        """Whether they do not, as measured on its own weights."""


def describe(files: ModelFiles, *, max_context: int | None = None) -> NetworkConfig:
    """Exact sizes of a model, whoever runs it; `max_context` is the longest context that may be served, if bounded.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: It cannot be served, by name.
    """
    network = read_network(files)
    if isinstance(network, WhisperSizes):
        return network
    if isinstance(network, DecoderConfig | MultimodalConfig):
        return network.served(max_context)
    described: NetworkConfig = _long_tail(network.architecture).describe(files)
    return described


def cache_variant(network: NetworkConfig) -> str:
    """As `DecoderConfig.cache_variant`."""
    return "" if isinstance(network, LongTailConfig) else network.cache_variant


def media_kinds(network: NetworkConfig) -> tuple[MediaKind, ...]:
    """Media that prompts of this model may hold."""
    if isinstance(network, WhisperSizes):
        return ("audio",)
    return network.kinds if isinstance(network, MultimodalConfig) else ()


def media_width(network: NetworkConfig) -> int:
    """Values of a row that stands for a place of a medium; 0 for a model that takes none."""
    if isinstance(network, WhisperSizes):
        return network.width
    return network.text.hidden_size if isinstance(network, MultimodalConfig) else 0


def recording_tokens(network: NetworkConfig) -> int:
    """Placeholders of the recording that every prompt of this model begins with; 0 where prompts may do without."""
    return network.audio_tokens if isinstance(network, WhisperSizes) else 0


def load_network(
    files: ModelFiles,
    network: NetworkConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[float], None],
    native: Quantize | None = None,
    card: Quantize | None = None,
    launches: Mapping[str, Any] | None = None,
) -> LoadedNetwork:
    """Load a model of which `network` is the description.

    Args:
        native: How weights are packed for the native kernels; None for other kernels.
        card: How weights are rounded for Triton's kernels on a CUDA device; None for other kernels.
        launches: How those are launched (`kernels.triton.plan.Plan.document`); None for defaults.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `load_decoder`.
    """
    if isinstance(network, DecoderConfig):
        if native is not None:
            return load_native(
                files, dtype=str(dtype).removeprefix("torch."), quantize=native, progress=progress, config=network
            )
        if card is not None:
            return _load_on_card(files, network, device, card, progress, launches)
        return load_decoder(files, device=device, dtype=dtype, progress=progress, config=network)
    if isinstance(network, MultimodalConfig):
        return load_multimodal(files, network, device=device, dtype=dtype, progress=progress, native=native)
    if isinstance(network, WhisperSizes):
        return load_whisper(files, device=device, dtype=dtype, progress=progress)
    loaded: LoadedNetwork = _long_tail(network.architecture).load_network(
        files, device=device, dtype=dtype, progress=progress
    )
    return loaded


def _load_on_card(
    files: ModelFiles,
    config: DecoderConfig,
    device: torch.device,
    quantize: Quantize,
    progress: Callable[[float], None],
    launches: Mapping[str, Any] | None,
) -> LoadedNetwork:
    """Kernels are compiled, or found in Triton's cache, while the weights stream."""
    from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan
    from edgewise.models.decoder.cuda.loading import load_on_card
    from edgewise.models.decoder.cuda.network import CudaDecoder

    warming = threading.Thread(target=compiled, args=(device,), name="triton-warm-up")
    warming.start()
    try:
        weights = load_on_card(files, config, device, quantize, progress)
    finally:
        warming.join()
    return CudaDecoder(weights, DEFAULT_PLAN if launches is None else Plan.of(launches))


def _long_tail(architecture: str) -> Any:
    """transformers takes seconds and hundreds of megabytes to import; most models never need it."""
    require_transformers(architecture)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched behind the store's back, kernels and code least of all
    try:
        return importlib.import_module(_LONG_TAIL)
    except ImportError as error:
        raise UnsupportedModel(
            f"config.json: {architecture} needs transformers, and the one that is installed cannot be used ({error}): "
            "`pip install -U 'edgewise[transformers]'`."
        ) from error
