"""Numbers of bytes as people read them: memory in binary units, files in decimal ones, as their tools show them."""

from __future__ import annotations


def mib(size: int) -> str:
    """Memory, e.g. "512.0 MiB"."""
    return f"{size / 2**20:,.1f} MiB"


def gib(size: int) -> str:
    """Memory or disk of a machine, e.g. "15.6 GiB"."""
    return f"{size / 2**30:.1f} GiB"


def file_size(size: int) -> str:
    """A file, e.g. "0.7 kB", "98.4 MB" or "1.24 GB"."""
    if size < 1e6:
        return f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
