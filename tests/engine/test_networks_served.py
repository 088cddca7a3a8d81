"""A model with two sets of rotary angles: the configured context decides, and cached keys of one never meet the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgewise.engine.networks import cache_variant, describe
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.files import ModelFiles

LONGROPE = {
    "original_max_position_embeddings": 128,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


@pytest.mark.parametrize(
    ("context", "variant"), [(None, "longrope-long"), (129, "longrope-long"), (128, "longrope-short")]
)
def test_configured_context_decides(
    context: int | None, variant: str, tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    files = tiny_model_factory(family="phi3", config=LONGROPE)
    network = describe(files, max_context=context)
    assert isinstance(network, DecoderConfig)
    assert network.rope.is_long is variant.endswith("long")
    assert cache_variant(network) == variant


def test_other_models_have_one_way(tiny_model: ModelFiles) -> None:
    assert cache_variant(describe(tiny_model, max_context=64)) == ""
