"""`https:` sources: one file behind a URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from edgewise.models.blobs import PartialFile
from edgewise.models.progress import ProgressSink
from edgewise.models.sources.attempts import MAX_ATTEMPTS
from edgewise.models.sources.transfer import Transfer
from edgewise.security.fetch import FetchPolicy, check_url

__all__ = ["MAX_ATTEMPTS", "HttpsSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsSource:
    """A file behind a URL.

    Attributes:
        url: https, or http where allowed.
        allow_http: Whether http is.
        allow_private: Whether the URL's own host may lie at a private address; hosts that it redirects to may not.
        timeout_s: Longest silence, seconds.
        sleep: Waits between attempts (tests give their own).
    """

    network: ClassVar[bool] = True

    url: str
    allow_http: bool = False
    allow_private: bool = False
    timeout_s: float = 30.0
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.url

    @property
    def policy(self) -> FetchPolicy:
        """What this source may open.

        Raises:
            UrlRefused: The URL itself is malformed or of the wrong scheme.
        """
        policy = FetchPolicy(allow_http=self.allow_http, timeout_s=self.timeout_s)
        if not self.allow_private:
            return policy
        host = str(check_url(self.url, policy).hostname)
        return FetchPolicy(allow_http=self.allow_http, timeout_s=self.timeout_s, private_hosts=frozenset({host}))

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        Transfer(url=self.url, policy=self.policy, sleep=self.sleep).run(sink, progress)
