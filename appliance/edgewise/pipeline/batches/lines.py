"""The lines of a batch's input file: where each is, and whether each is a request that can be tried."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_ERRORS = 20
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Line:
    """Attributes:
    number: In the file, from 1.
    start, length: Bytes of the file.
    """

    number: int
    custom_id: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a file is refused; `line` is None for the file as a whole."""

    code: str
    message: str
    line: int | None
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


def read_lines(path: Path, *, endpoint: str, max_lines: int, max_line_bytes: int) -> tuple[list[Line], list[LineError]]:
    """Every line of the file, and what is wrong with the first lines that are."""
    lines: list[Line] = []
    errors: list[LineError] = []
    seen: set[str] = set()
    for number, start, raw in _raw_lines(path, max_line_bytes):
        if len(lines) == max_lines:
            errors.append(LineError("too_many_lines", f"The file has more than {max_lines} lines: split it.", None))
            break
        found = _check(number, raw, endpoint, max_line_bytes, seen)
        if isinstance(found, LineError):
            errors.append(found)
        else:
            seen.add(found)
            lines.append(Line(number, found, start, len(raw)))
        if len(errors) == MAX_ERRORS:
            break
    if not lines and not errors:
        errors.append(LineError("empty_file", "The file has no line.", None))
    return lines, errors


def read_line(path: Path, line: Line) -> bytes:
    with path.open("rb") as file:
        file.seek(line.start)
        return file.read(line.length)


def _raw_lines(path: Path, max_line_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """(number, first byte, text) of every line that is not empty; of one that is too long, its beginning."""
    start = number = 0
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:  # some editors begin a file so
            start = len(codecs.BOM_UTF8)
        file.seek(start)
        while raw := file.readline(max_line_bytes + 2):
            number += 1
            begin, start = start, start + len(raw)
            while not raw.endswith(b"\n") and (more := file.readline(max_line_bytes + 2)):
                start += len(more)
                raw = raw if not more.endswith(b"\n") else raw + b"\n"
            if raw.strip():
                yield number, begin, raw.rstrip(b"\r\n") if len(raw) <= max_line_bytes + 2 else raw


def _check(number: int, raw: bytes, endpoint: str, max_bytes: int, seen: set[str]) -> str | LineError:
    """The line's custom_id."""
    if len(raw) > max_bytes:
        return LineError("line_too_long", f"The line is longer than {max_bytes} bytes.", number)
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return LineError("invalid_json_line", "The line is no JSON object.", number)
    if not isinstance(value, dict):
        return LineError("invalid_json_line", "The line is no JSON object.", number)
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512 or _SURROGATE.search(custom_id):
        return LineError("missing_custom_id", "'custom_id' must be 1 to 512 characters.", number, "custom_id")
    if custom_id in seen:
        return LineError("duplicate_custom_id", f"'custom_id' {custom_id!r} was used before.", number, "custom_id")
    if value.get("method") != "POST":
        return LineError("invalid_method", "'method' must be 'POST'.", number, "method")
    if value.get("url") != endpoint:
        return LineError("invalid_url", f"'url' must be the batch's endpoint, {endpoint}.", number, "url")
    if not isinstance(value.get("body"), dict):
        return LineError("invalid_body", "'body' must be an object.", number, "body")
    unknown = sorted(value.keys() - {"custom_id", "method", "url", "body"})
    if unknown:
        return LineError("unknown_field", f"Unknown field '{unknown[0][:80]}': remove it.", number, unknown[0][:80])
    return custom_id
