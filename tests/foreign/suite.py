"""What a run of a foreign suite says, and the service it runs against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.service import import_tiny, new_home, running
from tests.foreign.relay import Relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Cases that may fail, and why: `match` is a regular expression over the case's name and its message."""

    match: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A suite's outcome.

    Attributes:
        suite, version: What was run.
        passed: Cases that passed.
        explained: Reason -> names of cases that failed for it.
        unexplained: Name -> message of every other failure.
        requests, server_errors: What crossed the wire; answers of 500 and above.
        details: Whatever else is worth telling.
    """

    suite: str
    version: str
    passed: int
    explained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unexplained: Mapping[str, str] = field(default_factory=dict)
    requests: int = 0
    server_errors: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.unexplained and not self.server_errors

    def row(self) -> list[str]:
        """A line of the table: suite, version, passed, explained, unexplained, requests, answers of 5xx."""
        explained = sum(len(names) for names in self.explained.values())
        wire = (
            (self.requests, self.server_errors) if self.requests else ("-", "-")
        )  # clients that ask without the relay
        return [self.suite, self.version, *map(str, (self.passed, explained, len(self.unexplained), *wire))]


@contextmanager
def served(
    model: str | None = None, *, add_v1: bool = False, add_model: bool = False, **environment: str
) -> Iterator[Relay]:
    """A real service behind a relay: the `model` of the catalog, or a tiny random one, which answers in milliseconds.

    Contexts are short and requests limited in time, since a random model never ends by itself.
    """
    settings = {"EDGEWISE_ENGINE__MAX_CONTEXT": "512", "EDGEWISE_LIMITS__REQUEST_TIMEOUT_S": "20", **environment}
    with new_home(starter=model is not None) as home:
        name = model or import_tiny(home)
        with (
            running(home=home, model=name, environment=settings) as service,
            Relay(service.url, name, add_v1=add_v1, add_model=add_model) as relay,
        ):
            yield relay
