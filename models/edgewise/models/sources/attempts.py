"""Doing a thing over a network again until it is done, with pauses that grow, and an end."""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Callable
from typing import ClassVar, Final

from edgewise.core.errors import SourceUnavailable
from edgewise.security.fetch import Response

MAX_ATTEMPTS: Final = 6
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class TryAgain(Exception):
    """The attempt ended early in a way that the next one may mend.

    Args:
        reason: A sentence.
        pause_s: Seconds that the other side asks to wait.
        at_once: Whether the next attempt has what this one lacked, so that it is neither counted nor waited for.
    """

    def __init__(self, reason: str, pause_s: float = 0.0, *, at_once: bool = False) -> None:
        super().__init__(reason)
        self.pause_s = pause_s
        self.at_once = at_once


class Refused(SourceUnavailable):
    """Trying again would get the same answer."""

    retryable: ClassVar[bool] = False


class Attempts:
    """Counts failures in a row and waits between them.

    Args:
        sleep: Waits so many seconds (tests give their own).
    """

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._failures = 0

    def failed(self, error: TryAgain | SourceUnavailable, *, progressed: bool = False) -> None:
        """Waits before the next attempt.

        Args:
            error: Why the last one ended.
            progressed: Whether it got far enough that the count begins anew.

        Raises:
            SourceUnavailable: It was the last of `MAX_ATTEMPTS`, or the other side asks for more than `LONGEST_PAUSE_S`.
        """
        if isinstance(error, TryAgain) and error.at_once:
            return
        self._failures = 1 if progressed else self._failures + 1
        asked = error.pause_s if isinstance(error, TryAgain) else 0.0
        if asked > LONGEST_PAUSE_S:
            raise SourceUnavailable(
                f"{error} It asks to be left alone for {asked:.0f} s: pull again then.", retry_after_s=asked
            ) from error
        if self._failures >= MAX_ATTEMPTS:
            raise SourceUnavailable(
                f"{error} {self._failures} attempts in a row failed; pull again to resume."
            ) from error
        grown = FIRST_PAUSE_S * 2 ** (self._failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
        self._sleep(min(LONGEST_PAUSE_S, max(float(grown), asked)))


def check_passing(response: Response) -> None:
    """Raises TryAgain where the status says that the same request may succeed later."""
    if response.status in _PASSING:
        raise TryAgain(f"{response.shown_url} answers {response.status}.", retry_after_s(response))


def retry_after_s(response: Response) -> float:
    """Seconds of a Retry-After header in either form (RFC 9110, 10.2.3); 0 where there is none."""
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit() and len(value) < 9:
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):  # absent or malformed: the pauses grow without it
        return 0.0
