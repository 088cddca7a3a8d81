"""Small files of the kernel in /sys and /proc: None for one that is not there, and for one whose driver does not answer."""

from __future__ import annotations

from pathlib import Path


def text_of(path: Path) -> str | None:
    """Without white space around it, and without the NUL that ends texts of the device tree."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip("\x00 \t\r\n")
    except OSError:
        return None


def number_of(path: Path) -> float | None:
    text = text_of(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def degrees_of(path: Path) -> float | None:
    """Degrees Celsius of a file with thousandths of them."""
    value = number_of(path)
    return None if value is None else value / 1000.0
