"""Claim codes: what a person types into a device; 100 random bits, of which only the hash is stored."""

from __future__ import annotations

import hashlib
import secrets

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's: nothing that looks like something else
_GROUPS, _GROUP = 4, 5
_MEANT = str.maketrans({"O": "0", "I": "1", "L": "1"})


def new_code() -> str:
    """As `7K2QX-M0A3T-...`: four groups of five."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP)) for _ in range(_GROUPS))
    return "-".join(groups)


def digest(code: str) -> bytes:
    """SHA-256 of a code however it was typed: small letters, spaces, O for 0."""
    plain = "".join(code.upper().split()).replace("-", "").translate(_MEANT)
    return hashlib.sha256(plain.encode()).digest()


def new_uid() -> str:
    """A name for a device: in topics, certificates and at the broker. 11 characters, which none of the broker's own users has."""
    return "d" + "".join(secrets.choice(_ALPHABET.lower()) for _ in range(10))
