"""Tokens that prove who calls: 256 random bits behind a prefix that says what they are; only their SHA-256 is stored.

As for API keys of a device (`security.keys`), a slow hash would add nothing: nobody enumerates 2^256 secrets.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

SESSION_PREFIX = "ews_"
TOKEN_PREFIX = "ewt_"  # noqa: S105 (no secret)
_TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}", re.ASCII)
_SESSION = re.compile(rf"{SESSION_PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)


class NewToken(NamedTuple):
    """`text` is shown once."""

    id: str
    text: str


def new_session() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(32)


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def new_token() -> NewToken:
    id = secrets.token_hex(6)
    return NewToken(id, f"{TOKEN_PREFIX}{id}_{secrets.token_urlsafe(32)}")


def token_id(text: str) -> str | None:
    """The public part of an API token; None if the text is none."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else match[1]


def digest(text: str) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()
