"""Seeds of a request's sequences.

The first sequence of a prompt uses the request's seed itself, so that `n: 1` and the first choice of `n: 4` agree. Sequence
j > 0 uses the first 8 bytes, big endian, of SHA-256 over the ASCII text "edgewise-seed:<seed>:<j>".
"""

from __future__ import annotations

import hashlib
import secrets

MAX_SEED = 2**64 - 1


def draw_seed() -> int:
    """A fresh seed below 2**53, which every JSON reader keeps exactly, so that a receipt's seed can be sent back."""
    return secrets.randbits(53)


def normalize_seed(seed: int) -> int:
    """OpenAI's seeds are signed 64-bit numbers, the engine's unsigned: the same 64 bits."""
    return seed & MAX_SEED


def sequence_seed(seed: int, sequence: int) -> int:
    """Seed of the `sequence`-th answer (from 0) to one prompt."""
    if sequence == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"edgewise-seed:{seed}:{sequence}".encode()).digest()[:8], "big")
