"""Passwords: argon2id hashes, made and checked outside the event loop, at most two at once.

A hash costs 64 MiB and some tens of milliseconds (argon2-cffi's defaults, RFC 9106's second recommended option); more of them
side by side would let logins take the machine's memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import Parameters, PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from edgewise.core.errors import InvalidRequest

Result = TypeVar("Result")
LEAST = 10
MOST = 256
_AT_ONCE = 2


class Passwords:
    """Safe to use from one event loop; `close` when done."""

    def __init__(self, hashing: Parameters | None = None) -> None:
        self._hasher = PasswordHasher() if hashing is None else PasswordHasher.from_parameters(hashing)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fleet-password")
        self._nobody: str | None = None

    async def hash(self, password: str) -> str:
        """The hash to store.

        Raises:
            InvalidRequest: The password is shorter than `LEAST` or longer than `MOST` characters.
        """
        if not LEAST <= len(password) <= MOST:
            raise InvalidRequest(f"A password has {LEAST} to {MOST} characters.", param="password")
        return await self._run(self._hasher.hash, password)

    async def matches(self, stored: str | None, password: str) -> bool:
        """Whether this is the password. Without a stored hash it takes as long, so that the time does not tell who exists."""
        if len(password) > MOST:
            return False
        if stored is not None:
            return await self._run(self._check, stored, password)
        if self._nobody is None:
            self._nobody = await self._run(self._hasher.hash, secrets.token_urlsafe())
        await self._run(self._check, self._nobody, password)
        return False

    def close(self) -> None:
        self._pool.shutdown()

    def _check(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[..., Result], *arguments: str) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
