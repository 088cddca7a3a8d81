"""Stands in for llguidance on machines that measure a card and do not have it: the engine imports it, benchmarks ask no grammar.

`tests.bench.gpu_all` puts this folder on the path of its parts where the package is missing, and its report says so.
"""

from __future__ import annotations

from typing import Any


class LLParserLimits:
    """Bounds of a parser that is not there."""

    def __init__(self, **limits: Any) -> None:
        self.limits = limits


class _Absent:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("llguidance is not installed: answers cannot follow a grammar here")


class LLMatcher(_Absent):
    """Refuses to be made."""


class LLTokenizer(_Absent):
    """Refuses to be made."""
