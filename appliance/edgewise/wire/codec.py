"""Bytes of messages: JSON for control, CBOR (RFC 8949) where bytes or token streams travel, both within strict limits.

The first byte tells which it is: a message is a map, which begins with "{" in JSON and with 0xA0 to 0xBF in CBOR. Whatever
arrives is bounded before it is built: size, depth and the number of items, and in CBOR everything that this protocol does not use
(tags, indefinite lengths, repeated keys, keys other than text) is refused, since it is what decoders are attacked with.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import cbor2

from edgewise.core.errors import BadMessage

MAX_MESSAGE = 1024**2
"""Bytes of the largest message over MQTT; what is larger travels as a blob, or over HTTP."""

_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a decoder takes: bytes, levels of nesting, and items (members of lists and maps, over all levels)."""

    bytes: int = MAX_MESSAGE
    depth: int = 16
    items: int = 2**19


DEFAULT = Limits()


def encode_json(message: dict[str, Any]) -> bytes:
    """Compact JSON in UTF-8.

    Raises:
        ValueError: A number is not finite.
        TypeError: Something that JSON does not know, bytes for instance.
    """
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encode_cbor(message: dict[str, Any]) -> bytes:
    """CBOR with definite lengths and without tags; tuples become lists."""
    return cbor2.dumps(message)


def decode(payload: bytes, limits: Limits = DEFAULT) -> dict[str, Any]:
    """The map that `payload` holds, from either format.

    Raises:
        BadMessage: It is malformed, holds what this protocol does not use, or is beyond a limit.
    """
    if len(payload) > limits.bytes:
        raise BadMessage(f"A message has {len(payload)} bytes; the limit is {limits.bytes}.")
    first = payload[0] if payload else 0
    if first == ord("{"):
        return _decode_json(payload, limits)
    if 0xA0 <= first <= 0xBF:
        return _decode_cbor(payload, limits)
    raise BadMessage("A message is neither a JSON object nor a CBOR map.")


def _decode_json(payload: bytes, limits: Limits) -> dict[str, Any]:
    _bound_json(payload, limits)
    try:
        message = cast(dict[str, Any], json.loads(payload, parse_constant=_no_number, parse_float=_finite))
        if (
            b"\\ud" in payload or b"\\uD" in payload
        ):  # half a surrogate pair is no text: nobody could write it down again
            encode_json(message)
        return message
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"A message is no JSON object: {str(error)[:100]}") from error


def _bound_json(payload: bytes, limits: Limits) -> None:
    """Refuse what is too deep or has too many items. Counting bytes bounds both from above; only where that does not do, text
    is told apart from structure."""
    if payload.count(b"[") + payload.count(b"{") <= limits.depth and payload.count(b",") < limits.items:
        return
    depth = items = 0
    for match in _STRUCTURE.finditer(payload):
        mark = match[0]
        if mark in (b"[", b"{"):
            depth += 1
            items += 1
        elif mark in (b"]", b"}"):
            depth -= 1
        elif mark == b",":
            items += 1
        if depth > limits.depth or items > limits.items:
            raise BadMessage(f"A message is deeper than {limits.depth} levels or has more than {limits.items} items.")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _decode_cbor(payload: bytes, limits: Limits) -> dict[str, Any]:
    _bound_cbor(payload, limits)
    try:
        message = cbor2.loads(
            payload,
            max_depth=limits.depth + 1,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORDecodeError, ValueError, RecursionError) as error:
        raise BadMessage(f"A message is no CBOR map: {str(error)[:100]}") from error
    return cast(dict[str, Any], message)


def _bound_cbor(payload: bytes, limits: Limits) -> None:  # one pass over one grammar
    """Walk the structure without building anything: refuse what is too deep, has too many items, claims more bytes than there
    are, or is not of the part of CBOR that is used here."""
    open_items = [1]  # how many items each open container still waits for, the outermost first
    position, items, size = 0, 0, len(payload)
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        open_items[-1] -= 1
        items += 1
        if items > limits.items:
            raise BadMessage(f"A message has more than {limits.items} items.")
        if position >= size:
            raise BadMessage("A CBOR message ends too early.")
        head = payload[position]
        major, info = head >> 5, head & 31
        position += 1
        if info < 24:
            argument = info
        elif info <= 27:
            width = 1 << (info - 24)
            if position + width > size:
                raise BadMessage("A CBOR message ends too early.")
            argument = int.from_bytes(payload[position : position + width], "big")
            position += width
        else:
            raise BadMessage("A CBOR message has an item of indefinite length.")
        if major in (0, 1):
            continue
        if major in (2, 3):
            position += argument
            if position > size:
                raise BadMessage("A CBOR message claims more bytes than it has.")
        elif major in (4, 5):
            count = argument * (major - 3)
            if count > min(limits.items - items, size - position):
                raise BadMessage(f"A CBOR message claims more items than it has, or more than {limits.items}.")
            open_items.append(count)
            if len(open_items) > limits.depth + 1:
                raise BadMessage(f"A message is deeper than {limits.depth} levels.")
        elif major == 6:
            raise BadMessage("A CBOR message has a tag; none is used here.")
        else:
            _check_simple(info, argument, payload, position)
    if position != size:
        raise BadMessage("Bytes follow the end of a CBOR message.")


def _check_simple(info: int, argument: int, payload: bytes, position: int) -> None:
    """False, true, null and finite numbers are all that is used of major type 7."""
    if info in (25, 26, 27):
        width = 1 << (info - 24)
        number = cast(float, cbor2.loads(payload[position - width - 1 : position]))
        if math.isfinite(number):
            return
    elif info in (20, 21, 22):
        return
    raise BadMessage(
        f"A CBOR message has the value {argument} of type 7; only false, true, null and finite numbers are used."
    )
