"""What is said of what is written."""

from __future__ import annotations


def normalize(line: str) -> str:
    return line
