"""Rows of token ids as bytes, on their way to an encoder's process."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from edgewise.core.errors import InvalidRequest

Rows = tuple[tuple[int, ...], ...]


class Pair(NamedTuple):
    """Token ids of two texts in one row, and where in it the second begins: the row's length where models do not care."""

    ids: Sequence[int]
    second: int


def pack_rows(rows: Sequence[Sequence[int]], param: str) -> bytes:
    """The content of a request: the number of rows, their lengths, then all ids; unsigned 32-bit numbers in machine order.

    Raises:
        InvalidRequest: An id is no such number.
    """
    try:
        return array("I", [len(rows), *map(len, rows), *(id for row in rows for id in row)]).tobytes()
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(f"'{param}' holds a value that is no token id: {error}.", param=param) from error


def unpack_rows(content: bytes) -> Rows:
    """What `pack_rows` packed. Raises `InvalidRequest` if it is cut."""
    numbers = array("I")
    try:
        numbers.frombytes(content)
        count = numbers[0]
        lengths = numbers[1 : 1 + count]
    except (ValueError, IndexError) as error:
        raise InvalidRequest("Packed rows are cut.") from error
    if len(lengths) != count or 1 + count + sum(lengths) != len(numbers):
        raise InvalidRequest("Packed rows are cut.")
    rows, at = [], 1 + count
    for length in lengths:
        rows.append(tuple(numbers[at : at + length]))
        at += length
    return tuple(rows)


def pack_pairs(pairs: Sequence[Pair], param: str) -> bytes:
    """The rows of all pairs as `pack_rows` has them, and one row more: where the second texts begin."""
    return pack_rows([*(pair.ids for pair in pairs), [pair.second for pair in pairs]], param)


def unpack_pairs(rows: Rows) -> tuple[Pair, ...]:
    """Of what `unpack_rows` found. Raises `InvalidRequest` if there is not one beginning for each row."""
    *ids, seconds = rows or ((),)
    if len(ids) != len(seconds):
        raise InvalidRequest("Packed pairs are cut.")
    return tuple(Pair(row, second) for row, second in zip(ids, seconds, strict=True))
