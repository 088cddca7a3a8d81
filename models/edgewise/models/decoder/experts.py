"""Which layers of a decoder have experts, and how a token is routed. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward blocks of which each token uses some.

    Attributes:
        count: Experts in a layer.
        per_token: How many of them a token goes through.
        ffn_size: Inner size of one expert.
        normalised: Whether the weights of a token's experts are scaled to a sum of 1.
        layers: Per layer, whether it has experts; the others have one block for all tokens.
    """

    count: int
    per_token: int
    ffn_size: int
    normalised: bool
    layers: tuple[bool, ...]
