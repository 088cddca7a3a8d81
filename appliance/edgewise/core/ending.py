"""Ending what was begun: from the last to the first, each whatever befell the others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

from edgewise.core.errors import EdgewiseError, reason_of
from edgewise.core.log import get_logger

log = get_logger(__name__)


class Endings(AsyncExitStack):
    """An exit stack that lets the first error leave: the body's, or else the first that an ending raised.

    What later endings raise is logged, and is a note of the first one (PEP 678, from Python 3.11 on). contextlib's own stack
    raises the last error, in which a reader would look in vain for why the service ended.
    """

    def add(self, name: str, end: Callable[[], object]) -> None:
        """Have `end` called in its turn, and awaited where it gives something to await; `name` says in errors what it ends."""

        async def at_exit(
            kind: type[BaseException] | None, first: BaseException | None, trace: TracebackType | None
        ) -> None:
            del kind, trace
            try:
                ended = end()
                if inspect.isawaitable(ended):
                    await ended
            except Exception as error:
                if first is None:
                    raise
                _note(first, name, error)

        self.push_async_exit(at_exit)


def _note(first: BaseException, name: str, error: Exception) -> None:
    """Called where `error` is handled."""
    reason = reason_of(error)
    if isinstance(error, EdgewiseError):
        log.error("not_ended", what=name, reason=reason)
    else:
        log.exception("not_ended", what=name)
    if sys.version_info >= (3, 11):
        first.add_note(f"Then {name} could not be ended: {reason}")
