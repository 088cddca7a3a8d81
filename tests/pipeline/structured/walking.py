"""Answers drawn at random inside a grammar, one byte a token: no model is as contrary as chance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from edgewise.engine.constraint import Constraints
from edgewise.engine.vocabulary import Vocabulary

EOS = 0
BYTES = 64
"""Token of the byte 0."""


def byte_vocabulary(special: Mapping[str, int] | None = None) -> Vocabulary:
    """Token 0 ends an answer, 1 to 63 may be control tokens, 64 to 319 are the bytes."""
    spellings = [b"<end>", *[b""] * 63, *(bytes([byte]) for byte in range(256))]
    for text, id in (special or {}).items():
        spellings[id] = text.encode()
    return Vocabulary(spellings=tuple(spellings), special=(EOS, *(special or {}).values()), eos=(EOS,))


def walk(
    constraint: str,
    seed: int,
    vocabulary: Vocabulary | None = None,
    *,
    begun: Sequence[int] = (),
    eager: bool = False,
    limit: int = 3000,
) -> bytes:
    """One random answer that ends; fails if it does not end within `limit` tokens or comes to a dead end.

    Args:
        begun: Tokens that it begins with.
        eager: End as soon as that is allowed.
    """
    table = vocabulary or byte_vocabulary()
    rng = random.Random(seed)
    constraints = Constraints(table)
    constraints.open("r", constraint)
    tokens = list(begun)
    try:
        while len(tokens) < limit:
            mask = constraints.begin("r", tokens)
            assert mask is not None
            permitted = mask.result()
            assert permitted.problem is None, permitted.problem
            bits = permitted.bits
            allowed = [id for id in range(len(table.spellings)) if bits[id >> 3] >> (id & 7) & 1]
            token = EOS if eager and EOS in allowed else rng.choice(allowed)
            if token == EOS:
                return b"".join(table.spellings[id] for id in tokens)
            tokens.append(token)
    finally:
        constraints.stop()
    raise AssertionError(f"no end within {limit} tokens: {b''.join(table.spellings[id] for id in tokens)[:200]!r}")
