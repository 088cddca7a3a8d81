"""The Jinja environment that chat templates expect, as transformers defines it: sandboxed, immutable, with loop controls.

Only the render process imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusedError(TemplateError):
    """The template itself says no (`raise_exception`)."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model writes, for training; for us it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def chat_environment() -> ImmutableSandboxedEnvironment:
    """An environment for one or more chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    environment.filters["tojson"] = _tojson
    return environment


def _raise(message: object) -> NoReturn:
    raise TemplateRefusedError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # local time, as transformers writes it


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
