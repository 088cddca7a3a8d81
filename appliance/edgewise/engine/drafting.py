"""The draft model of an engine: whether it can guess for it, and how much memory it takes. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgewise.core.errors import ConfigError
from edgewise.engine.config import EngineConfig
from edgewise.engine.numerics import Numerics, resolve
from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.memory import kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.longtail.config import LongTailConfig
from edgewise.models.longtail.estimate import read_network
from edgewise.models.multimodal.config import MultimodalConfig

_CONTEXTS = 4
"""Whole contexts that its cache holds; more and shorter answers have room as well."""
CHUNK = 128
"""Prompt tokens that it reads in one step of the engine at most."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What is loaded, and how; `nbytes` are those of weights, pages and workspace."""

    network: DecoderConfig
    numerics: Numerics
    pages: int
    nbytes: int


def why_no_guesses(config: EngineConfig, network: NetworkConfig, kernels: str) -> str:
    """Why nothing is guessed for a model, as far as that is known before it is loaded; "" where it may be."""
    if isinstance(network, MultimodalConfig) and network.speaks:
        return "the model speaks, and its voice is made of all tokens that a step computes"
    if isinstance(network, LongTailConfig):
        return "transformers' layers do not promise that a token's bits are the same whatever is computed beside it"
    if kernels == "triton" and config.speculation == "auto":
        return "steps are queued ahead on the card"
    return ""


def plan_draft(config: EngineConfig, network: NetworkConfig, numerics: Numerics) -> DraftPlan | None:
    """None where no draft model is to guess, or nothing is guessed at all.

    Raises:
        ConfigError: It cannot guess for this model: another vocabulary, or it is no decoder of our own.
    """
    if config.draft is None or config.speculation not in ("auto", "draft"):
        return None
    if why_no_guesses(config, network, numerics.kernels):
        return None
    draft = read_network(config.draft)
    if not isinstance(draft, DecoderConfig):
        raise ConfigError(
            f"'engine.draft_model' {config.draft.name} cannot guess: models that read text alone do, on our own decoder.",
            param="engine.draft_model",
        )
    draft = draft.served(config.max_context)
    if draft.vocab_size != network.vocab_size:
        raise ConfigError(
            f"'engine.draft_model' {config.draft.name} has a vocabulary of {draft.vocab_size}, {config.model.name} one of "
            f"{network.vocab_size}: they must be the same.",
            param="engine.draft_model",
        )
    context = min(draft.max_position, network.max_position, config.max_context or network.max_position)
    pages = -(-context * min(_CONTEXTS, config.max_running) // PAGE_TOKENS)
    own = _own(config, draft, numerics)
    kv = pages * PAGE_TOKENS * kv_bytes_per_token(draft, own.kv_dtype, own.dtype)
    workspace = workspace_bytes(draft, CHUNK, config.max_running, own.device)
    return DraftPlan(draft, own, pages, weight_bytes(draft, own.dtype, native_weights(own)) + kv + workspace)


def _own(config: EngineConfig, draft: DecoderConfig, numerics: Numerics) -> Numerics:
    """The draft model's: native kernels beside native ones, else the reference's."""
    if numerics.kernels != "native":
        return replace(numerics, quantize="none", kernels="reference")
    return resolve(
        device=numerics.device,
        dtype=config.dtype,
        kv_dtype=numerics.kv_dtype,
        quantize=config.quantize,
        cuda=False,
        network=draft,
    )


def native_weights(numerics: Numerics) -> Quantize | None:
    """How weights are packed for the native kernels; None for others."""
    return numerics.quantize if numerics.kernels == "native" else None
