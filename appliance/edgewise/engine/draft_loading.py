"""Loads the draft model that was planned (`engine.drafting`)."""

from __future__ import annotations

import torch

from edgewise.engine.config import EngineConfig
from edgewise.engine.drafting import CHUNK, DraftPlan, native_weights
from edgewise.engine.kv_cache import allocate
from edgewise.engine.networks import load_network
from edgewise.engine.pages import PagePool
from edgewise.engine.runner import Runner
from edgewise.engine.speculation.draft import DraftModel
from edgewise.kernels.limits import PAGE_TOKENS


def load_draft(config: EngineConfig, plan: DraftPlan) -> DraftModel:
    """Raises as `networks.load_network`."""
    assert config.draft is not None
    numerics = plan.numerics
    device, dtype = torch.device(numerics.device), getattr(torch, numerics.dtype)
    network = load_network(
        config.draft,
        plan.network,
        device=device,
        dtype=dtype,
        progress=lambda _: None,
        native=native_weights(numerics),
    )
    network.prove_rows()
    kv = allocate(plan.network, num_pages=plan.pages, kv_dtype=numerics.kv_dtype, dtype=numerics.dtype, device=device)
    pool = PagePool(plan.pages, keep_cached=False)
    return DraftModel(
        Runner(network, kv, device),
        pool,
        max_position=plan.network.max_position,
        page_tokens=PAGE_TOKENS,
        chunk=CHUNK,
    )
