"""Posts messages in the form of Standard Webhooks (standardwebhooks.com), which OpenAI's clients verify too.

`webhook-id` is the same on every try: a receiver that answered late, or whose answer was lost, sees the same id again and does
nothing. `Idempotency-Key` says the same in the words of other receivers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor

from edgewise.core.clock import Clock
from edgewise.core.errors import ConfigError, EdgewiseError, SourceUnavailable
from edgewise.core.patience import within
from edgewise.security.fetch import FetchPolicy
from edgewise.security.post import Post

_PREFIX = "whsec_"


def secret_of(text: str, setting: str) -> bytes:
    """The key of signatures from the word in a secret file: base64 after "whsec_", else the word itself.

    Raises:
        ConfigError: What should be base64 is none, or empty; `setting` is named.
    """
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not secret:
        raise ConfigError(f"`{setting}`: what follows 'whsec_' is no base64.")
    return secret


def signature(secret: bytes, id: str, timestamp: int, body: bytes) -> str:
    """`webhook-signature`: HMAC-SHA256 over id, time in Unix seconds and body."""
    digest = hmac.new(secret, b".".join((id.encode(), str(timestamp).encode(), body)), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class WebhookSender:
    """Args:
    secret: Signs what is sent; None sends without a signature.
    patience_s: Longest time for one try.
    threads: Tries at once; a connection that is being made blocks its thread for as long as `policy.timeout_s`.
    """

    def __init__(
        self, policy: FetchPolicy, *, secret: bytes | None, patience_s: float, clock: Clock, threads: int = 4
    ) -> None:
        self._policy = policy
        self._secret = secret
        self._patience_s = patience_s
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhook")

    def __repr__(self) -> str:
        return f"WebhookSender(signed={self._secret is not None}, patience_s={self._patience_s})"

    async def send(self, url: str, id: str, message: bytes) -> int:
        """Post a JSON message; the status of the answer.

        Raises:
            UrlRefused: The URL leads where it must not.
            SourceUnavailable: Nobody answered in time, as far as is known.
        """
        post = Post(url, self._policy)

        def late() -> EdgewiseError:
            return SourceUnavailable(f"The receiver did not answer within {self._patience_s:g} s.")

        trying = asyncio.get_running_loop().run_in_executor(
            self._threads, post.run, message, self._headers(id, message)
        )
        try:
            return await within(trying, self._patience_s, late)
        finally:
            post.abort()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _headers(self, id: str, message: bytes) -> dict[str, str]:
        now = int(self._clock.time())
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": id,
            "webhook-id": id,
            "webhook-timestamp": str(now),
        }
        if self._secret is not None:
            headers["webhook-signature"] = signature(self._secret, id, now, message)
        return headers
