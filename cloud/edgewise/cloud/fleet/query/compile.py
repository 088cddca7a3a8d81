"""Makes an SQL condition of a query, for SQLite and PostgreSQL. What comes from outside is bound, never text of a statement.

| field | matches |
|---|---|
| `uid`, `name`, `version`, `state` | the device's own; `*` stands for anything |
| `model`, `loaded` | a model that it holds, or has in memory: by name, family (`smollm2` for smollm2-135m) or digest |
| `label.NAME`, or NAME that is no other field | a label |
| `gauge.NAME`, or NAME with a comparison | the newest value of its telemetry; without `gauge.` a label that is a number too |
| `version<1.2` | versions, compared as such |
| `seen>1h`, `seen:never` | how long ago it was heard of |
| `shadow.NAME` | applied, pending, refused, or behind what is desired |
| `reported.KEY`, `hardware.PATH` | a value of the configuration in force; of what the device says of its hardware |
| `alerts>0` | how many alerts are open |
| `group` | a saved query |
"""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import ColumnElement, and_, false, func, not_, or_, select, true
from sqlalchemy.sql.elements import SQLCoreOperations

from edgewise.cloud.fleet.db.tables import Alert, Device, DeviceLabel, DeviceModel, ShadowRow
from edgewise.cloud.fleet.query.language import Both, Node, Not, QueryError, Term, Value, parse
from edgewise.cloud.fleet.query.versions import version_key
from edgewise.cloud.fleet.views import DeviceState
from edgewise.core.clock import parse_duration
from edgewise.wire.fleet import SHADOWS

Condition = ColumnElement[bool]
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    ":": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ESCAPE = "\\"
_GROUPS_DEEP = 5


@dataclass(frozen=True, slots=True)
class Context:
    """Attributes:
    now: This service's clock.
    group: The query of a saved group by its name; None if there is none.
    """

    now: float
    group: Callable[[str], str | None] = lambda _: None
    depth: int = 0


def condition(text: str, context: Context) -> Condition:
    """Which rows of `devices` match.

    Raises:
        QueryError: It cannot be read; the message names the position and the remedy.
    """
    node = parse(text)
    return true() if node is None else _node(node, context)


def _node(node: Node, context: Context) -> Condition:
    if isinstance(node, Not):
        return not_(_node(node.node, context))
    if isinstance(node, Both):
        parts = [_node(one, context) for one in node.nodes]
        return and_(*parts) if node.how == "AND" else or_(*parts)
    return _term(node, context)


def _term(term: Term, context: Context) -> Condition:
    if not term.field:
        return _word(term.value)
    name, _, rest = term.field.partition(".")
    if term.field in _OWN:
        return _OWN[term.field](term, context)
    if rest and name in _DOTTED:
        return _DOTTED[name](term, rest)
    if term.operator in (":", "=", "!="):
        return _label(term, term.field)
    return or_(_gauge(term, term.field), _label(term, term.field))


# --- texts ----------------------------------------------------------------------------------------------------------------------


def _word(value: Value) -> Condition:
    part = f"%{_escaped(value.text.casefold())}%"
    labelled = select(DeviceLabel.uid).where(DeviceLabel.value.like(part, escape=_ESCAPE))
    return or_(
        Device.folded.like(part, escape=_ESCAPE),
        func.lower(Device.uid).like(part, escape=_ESCAPE),
        Device.uid.in_(labelled),
    )


def _text(column: SQLCoreOperations[Any], term: Term, *, fold: bool = False) -> Condition:
    """A text without regard to case: `column` is stored so (as `casefold` makes it), or with `fold` made so by the database."""
    text = term.value.text if fold else term.value.text.casefold()
    wild = "*" in text and not term.value.quoted
    pattern = "%".join(_escaped(part) for part in text.split("*")) if wild else text
    left, right = (func.lower(column), func.lower(pattern)) if fold else (column, pattern)
    found: Condition = left.like(right, escape=_ESCAPE) if wild else left == right
    if term.operator not in (":", "=", "!="):
        raise QueryError(term.place, f"{term.field} is a text: write {term.field}:{term.value.text}")
    found = func.coalesce(found, false())
    return not_(found) if term.operator == "!=" else found


def _escaped(text: str) -> str:
    for mark in (_ESCAPE, "%", "_"):
        text = text.replace(mark, _ESCAPE + mark)
    return text


def _name(term: Term, _: Context) -> Condition:
    return _text(Device.folded, term)


def _uid(term: Term, _: Context) -> Condition:
    return _text(Device.uid, term, fold=True)


def _state(term: Term, _: Context) -> Condition:
    states = get_args(DeviceState)
    chosen = fnmatch.filter(states, term.value.text.lower())
    if not chosen or term.operator not in (":", "=", "!="):
        raise QueryError(term.value.place, f"{term.value.text!r} is no state: {', '.join(states)}")
    found = Device.state.in_(chosen)
    return not_(found) if term.operator == "!=" else found


def _version(term: Term, _: Context) -> Condition:
    if "*" in term.value.text:
        return _text(Device.version, term, fold=True)
    key = version_key(term.value.text)
    return and_(Device.version != "", _COMPARE[term.operator](Device.version_key, key))


def _model(term: Term, _: Context) -> Condition:
    return _held(term, loaded=False)


def _loaded(term: Term, _: Context) -> Condition:
    return _held(term, loaded=True)


def _held(term: Term, *, loaded: bool) -> Condition:
    positive = Term(term.field, ":" if term.operator == "!=" else term.operator, term.value, term.place)
    text = term.value.text.casefold()
    named = _text(DeviceModel.name, positive)
    if "*" not in text:
        named = or_(named, *(DeviceModel.name.like(_escaped(text) + mark + "%", escape=_ESCAPE) for mark in "-:/"))
    held = select(DeviceModel.uid).where(or_(named, DeviceModel.digest == term.value.text))
    found = Device.uid.in_(held.where(DeviceModel.loaded.is_(True)) if loaded else held)
    return not_(found) if term.operator == "!=" else found


def _label(term: Term, name: str) -> Condition:
    labelled = select(DeviceLabel.uid).where(DeviceLabel.name == name.casefold())
    if term.operator in (":", "=", "!="):
        positive = Term(term.field, ":", term.value, term.place)
        found = Device.uid.in_(labelled.where(_text(DeviceLabel.value, positive)))
        return not_(found) if term.operator == "!=" else found
    return Device.uid.in_(labelled.where(_COMPARE[term.operator](DeviceLabel.number, _number(term))))


def _reported(term: Term, key: str) -> Condition:
    value = ShadowRow.reported[key].as_string()
    positive = Term(term.field, ":", term.value, term.place)
    same = _text(value, positive, fold=True)
    if (told := {"true": "1", "false": "0"}.get(term.value.text.lower())) is not None:
        same = or_(same, func.coalesce(func.lower(value) == told, false()))  # as SQLite gives a truth value
    found = Device.uid.in_(select(ShadowRow.uid).where(ShadowRow.shadow == "config", same))
    return not_(found) if term.operator == "!=" else found


def _hardware(term: Term, path: str) -> Condition:
    keys = ("hardware", *path.split("."))
    return _text(Device.birth[keys].as_string(), term, fold=True)


# --- numbers --------------------------------------------------------------------------------------------------------------------


def _gauge(term: Term, name: str) -> Condition:
    return func.coalesce(_COMPARE[term.operator](Device.gauges[name].as_float(), _number(term)), false())


def _alerts(term: Term, _: Context) -> Condition:
    count = select(func.count()).select_from(Alert).where(Alert.uid == Device.uid, Alert.cleared_at.is_(None))
    found: Condition = _COMPARE[term.operator](count.correlate(Device).scalar_subquery(), _number(term))
    return found


def _number(term: Term) -> float:
    try:
        return float(term.value.text.removesuffix("%"))
    except ValueError:
        raise QueryError(
            term.value.place, f"{term.value.text!r} is no number; a text is compared with {term.field}:VALUE"
        ) from None


def _seen(term: Term, context: Context) -> Condition:
    if term.value.text.lower() == "never" and term.operator in (":", "="):
        return Device.seen_at.is_(None)
    if term.operator not in ("<", "<=", ">", ">="):
        raise QueryError(term.place, "write seen<5m, seen>1h or seen:never")
    try:
        age = parse_duration(term.value.text)
    except ValueError as error:
        raise QueryError(term.value.place, str(error)) from None
    return func.coalesce(_COMPARE[term.operator](context.now - Device.seen_at, age), false())


# --- others ---------------------------------------------------------------------------------------------------------------------


def _shadow(term: Term, name: str) -> Condition:
    states = ("applied", "pending", "refused", "behind")
    state = term.value.text.lower()
    if name not in SHADOWS:
        raise QueryError(term.place, f"{name!r} is no shadow: {', '.join(SHADOWS)}")
    if state not in states or term.operator not in (":", "=", "!="):
        raise QueryError(term.value.place, f"{term.value.text!r} is no state of a shadow: {', '.join(states)}")
    where = ShadowRow.gen > ShadowRow.applied if state == "behind" else ShadowRow.state == state
    found = Device.uid.in_(select(ShadowRow.uid).where(ShadowRow.shadow == name, where))
    return not_(found) if term.operator == "!=" else found


def _group(term: Term, context: Context) -> Condition:
    query = context.group(term.value.text)
    if query is None:
        raise QueryError(term.value.place, f"there is no group {term.value.text!r}; save its query first")
    if context.depth >= _GROUPS_DEEP:
        raise QueryError(term.value.place, f"groups name each other more than {_GROUPS_DEEP} levels deep")
    found = condition(query, Context(context.now, context.group, context.depth + 1))
    return not_(found) if term.operator == "!=" else found


_OWN: Mapping[str, Callable[[Term, Context], Condition]] = {
    "uid": _uid,
    "name": _name,
    "state": _state,
    "version": _version,
    "model": _model,
    "loaded": _loaded,
    "seen": _seen,
    "alerts": _alerts,
    "group": _group,
}
_DOTTED: Mapping[str, Callable[[Term, str], Condition]] = {
    "label": _label,
    "gauge": _gauge,
    "shadow": _shadow,
    "reported": _reported,
    "hardware": _hardware,
}
