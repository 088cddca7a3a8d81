"""The small files beside a model's weights, read whole and within a limit: configuration, tokenizer, templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import BadModelFile, StorageError

MAX_BYTES: Final = 64 << 20


def read_bytes(path: Path, name: str, *, most: int = MAX_BYTES) -> bytes:
    """The whole file.

    Args:
        path: Where it lies; its own name may be a digest.
        name: What errors call it.
        most: Bytes it may have.

    Raises:
        BadModelFile: It is larger.
        StorageError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise StorageError(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise BadModelFile(f"{name}, byte {most}: the file is larger; the limit is {most} bytes")
    return data


def read_object(path: Path, name: str, *, most: int = MAX_BYTES) -> dict[str, Any]:
    """The file's JSON object; raises as `read_bytes`, and BadModelFile where it is none."""
    value = _read_json(path, name, most)
    if not isinstance(value, dict):
        raise BadModelFile(f"{name}, byte 0: the file is not a JSON object")
    return value


def read_list(path: Path, name: str, *, most: int = MAX_BYTES) -> list[Any]:
    """The file's JSON array; raises as `read_object`."""
    value = _read_json(path, name, most)
    if not isinstance(value, list):
        raise BadModelFile(f"{name}, byte 0: the file is not a JSON array")
    return value


def _read_json(path: Path, name: str, most: int) -> Any:
    try:
        return json.loads(read_bytes(path, name, most=most))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name}, byte {getattr(error, 'pos', 0)}: the file is not JSON: {error}") from error
