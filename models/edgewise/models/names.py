"""Which names a model and its files may have. Every path below the store is made of names that passed here.

The grammar is far stricter than any file system's: ASCII lower case, digits and `.-_`, one level, no directory part. So no
name needs escaping, two names never differ only by case or Unicode form, and a name is a safe path component everywhere.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from edgewise.core.errors import InvalidRequest

MAX_NAME: Final = 96
MAX_FILE_NAME: Final = 200

_NAME: Final = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RESERVED: Final = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)}
)
_RULE: Final = f"1 to {MAX_NAME} of a-z, 0-9, '.', '-', '_', beginning and ending with a letter or digit, without '..'"


def check_name(name: str) -> str:
    """Returns `name` unchanged if it is a valid model name.

    Raises:
        InvalidRequest: The name breaks the grammar or is reserved on Windows; the message says which rule and how to mend it.
    """
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"Model name of {len(name)} characters is too long: use {_RULE}.", param="model")
    if not _NAME.fullmatch(name) or ".." in name:
        hint = suggest_name(name)
        also = f", for example {hint!r}" if hint else ""
        raise InvalidRequest(f"Model name {name!r} is not allowed: use {_RULE}{also}.", param="model")
    if _is_reserved(name):
        raise InvalidRequest(f"Model name {name!r} is a device name on Windows: choose another.", param="model")
    return name


def check_file_name(name: str) -> str:
    """Returns `name` unchanged if a model file may be called so (no directory part, ASCII, at most 200 characters).

    Raises:
        InvalidRequest: It may not.
    """
    reserved = _is_reserved(name.lower())
    if len(name) > MAX_FILE_NAME or not _FILE_NAME.fullmatch(name) or ".." in name or name.endswith(".") or reserved:
        rule = f"1 to {MAX_FILE_NAME} of letters, digits and '._+-', no directory, no leading or final '.', no '..'"
        raise InvalidRequest(f"Model file name {name[:80]!r} is not allowed: use {rule}.")
    return name


def check_file_path(name: str) -> str:
    """As `check_file_name`, with at most one folder before it: "unet/config.json"."""
    for part in name.split("/", 1):
        check_file_name(part)
    return name


def check_sha256(value: str) -> str:
    """Returns `value` unchanged if it is 64 lower-case hexadecimal digits; raises `InvalidRequest` otherwise."""
    if not _SHA256.fullmatch(value):
        raise InvalidRequest(f"{value[:80]!r} is not a SHA-256: give 64 lower-case hexadecimal digits.")
    return value


def suggest_name(text: str) -> str | None:
    """The nearest valid model name to `text`, or None where nothing is left of it."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", ascii_text)[:MAX_NAME]
    name = re.sub(r"\.{2,}", ".", name).strip("._-")
    return name if _NAME.fullmatch(name) and not _is_reserved(name) else None


def _is_reserved(lower_name: str) -> bool:
    return lower_name.split(".", 1)[0] in _RESERVED
