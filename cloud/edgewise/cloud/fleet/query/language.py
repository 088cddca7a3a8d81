"""Reads a query: `model:smollm2 AND (site:lyon OR site:paris) AND NOT state:online AND temperature_c>80`.

    query   = and {"OR" and}
    and     = not {["AND"] not}
    not     = ["NOT"] (term | "(" query ")")
    term    = field (":" | "=" | "!=" | "<" | "<=" | ">" | ">=") value | word
    value   = word | quoted

A word or a quoted text alone is looked for in names and labels. What a field means is `compile.py`'s matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from edgewise.core.errors import InvalidRequest

MAX_LENGTH = 2000
MAX_TERMS = 100
MAX_DEPTH = 20

Operator = Literal[":", "=", "!=", "<", "<=", ">", ">="]

_SPACE = re.compile(r"\s*")
_FIELD = re.compile(r"([A-Za-z_][\w./-]*)\s*(:|<=|>=|!=|<|>|=)\s*", re.ASCII)
_WORD = re.compile(r'[^\s()"]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


class QueryError(InvalidRequest):
    """A query that cannot be read; the message names the position and the remedy."""

    code = "invalid_query"

    def __init__(self, place: int, message: str) -> None:
        super().__init__(f"query: at character {place + 1}: {message}", param="query")
        self.place = place


@dataclass(frozen=True, slots=True)
class Value:
    """`quoted`: its asterisks are meant as such."""

    text: str
    quoted: bool
    place: int


@dataclass(frozen=True, slots=True)
class Term:
    """`field` "" for a word alone."""

    field: str
    operator: Operator
    value: Value
    place: int


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


@dataclass(frozen=True, slots=True)
class Both:
    """All of them ("AND"), or one ("OR")."""

    how: Literal["AND", "OR"]
    nodes: tuple[Node, ...]


Node: TypeAlias = "Term | Not | Both"


class _Token(NamedTuple):
    kind: Literal["AND", "OR", "NOT", "(", ")", "term", "end"]
    place: int
    term: Term | None = None


def parse(text: str) -> Node | None:
    """The query as a tree; None for an empty one, which all devices match.

    Raises:
        QueryError: It cannot be read.
    """
    if len(text) > MAX_LENGTH:
        raise QueryError(
            MAX_LENGTH, f"it is longer than {MAX_LENGTH} characters; save a part as a group and use group:NAME"
        )
    if "\0" in text:
        raise QueryError(text.index("\0"), "it has a NUL character, which no name or label has; remove it")
    tokens = _scan(text)
    if sum(token.kind == "term" for token in tokens) > MAX_TERMS:
        raise QueryError(0, f"it has more than {MAX_TERMS} conditions; save a part as a group and use group:NAME")
    if tokens[0].kind == "end":
        return None
    return _Parser(tokens).whole()


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def whole(self) -> Node:
        node = self._either(0)
        token = self._tokens[self._at]
        if token.kind != "end":
            raise QueryError(token.place, "a ')' closes nothing; remove it or open it before")
        return node

    def _either(self, depth: int) -> Node:
        nodes = [self._all(depth)]
        while self._take("OR"):
            nodes.append(self._all(depth))
        return nodes[0] if len(nodes) == 1 else Both("OR", tuple(nodes))

    def _all(self, depth: int) -> Node:
        nodes = [self._one(depth)]
        while self._take("AND") or self._tokens[self._at].kind in ("term", "(", "NOT"):
            nodes.append(self._one(depth))
        return nodes[0] if len(nodes) == 1 else Both("AND", tuple(nodes))

    def _one(self, depth: int) -> Node:
        token = self._tokens[self._at]
        if depth > MAX_DEPTH:
            raise QueryError(token.place, f"it is nested deeper than {MAX_DEPTH} levels")
        self._at += 1
        if token.kind == "NOT":
            return Not(self._one(depth + 1))
        if token.kind == "(":
            node = self._either(depth + 1)
            if not self._take(")"):
                raise QueryError(token.place, "this '(' is not closed; add a ')'")
            return node
        if token.term is None:
            what = "the query ends" if token.kind == "end" else f"there is {token.kind!r}"
            raise QueryError(token.place, f"{what} where a condition must be, such as site:lyon or state:offline")
        return token.term

    def _take(self, kind: str) -> bool:
        if self._tokens[self._at].kind != kind:
            return False
        self._at += 1
        return True


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = _skip(text, 0)
    while at < len(text):
        token, at = _token(text, at)
        tokens.append(token)
        at = _skip(text, at)
    return [*tokens, _Token("end", len(text))]


def _token(text: str, at: int) -> tuple[_Token, int]:
    if text[at] in "()":
        return _Token("(" if text[at] == "(" else ")", at), at + 1
    if (field := _FIELD.match(text, at)) is not None:
        value, end = _value(text, field.end())
        operator: Operator = field[2]  # type: ignore[assignment]  # the expression names exactly these
        return _Token("term", at, Term(field[1], operator, value, at)), end
    value, end = _value(text, at)
    if not value.quoted and value.text.upper() in ("AND", "OR", "NOT"):
        return _Token(value.text.upper(), at), end  # type: ignore[arg-type]  # one of the three
    return _Token("term", at, Term("", ":", value, at)), end


def _value(text: str, at: int) -> tuple[Value, int]:
    if at < len(text) and text[at] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise QueryError(at, "this quotation mark is not closed; add another one")
        return Value(re.sub(r"\\(.)", r"\1", quoted[1]), True, at), quoted.end()
    word = _WORD.match(text, at)
    if word is None:
        raise QueryError(at, 'a value must follow, such as site:lyon; an empty one is written ""')
    return Value(word[0], False, at), word.end()


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
