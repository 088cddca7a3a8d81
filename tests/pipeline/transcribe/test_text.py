"""Tokens of a window to segments: the cases of OpenAI's `transcribe.py`."""

from __future__ import annotations

import pytest

from edgewise.pipeline.transcribe.text import Piece, compression_ratio, parse_window

TIME = 1000
"""Id of the time 0; 50 ids are a second."""


def at(seconds: float) -> int:
    return TIME + round(seconds * 50)


@pytest.mark.parametrize(
    ("tokens", "pieces", "until"),
    [
        ([], [], 10.0),
        ([at(0)], [], 10.0),
        ([1, 2], [Piece(0.0, 10.0, (1, 2))], 10.0),
        ([at(1), 1, 2], [Piece(1.0, 10.0, (1, 2))], 10.0),
        ([at(1), 1, 2, at(3)], [Piece(1.0, 3.0, (1, 2))], 10.0),
        (
            [at(0), 1, at(2), at(2), 2, at(4)],
            [Piece(0.0, 2.0, (1,)), Piece(2.0, 4.0, (2,))],
            10.0,
        ),
        ([at(0), 1, at(2), at(3), 2], [Piece(0.0, 2.0, (1,))], 2.0),
        ([at(0), 1, at(2), at(2)], [Piece(0.0, 2.0, (1,))], 2.0),
        (
            [at(0), 1, at(2), at(3), 2, at(4), at(4)],
            [Piece(0.0, 2.0, (1,)), Piece(3.0, 4.0, (2,))],
            4.0,
        ),
        ([at(0), 1, at(29)], [Piece(0.0, 10.0, (1,))], 10.0),
        ([at(0), at(2)], [], 0.0),
    ],
)
def test_windows(tokens: list[int], pieces: list[Piece], until: float) -> None:
    found = parse_window(tokens, TIME, 10.0)
    assert list(found.pieces) == pieces
    assert found.until == until


def test_repeated_words_compress_well() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("A sentence that says one thing once.") < 1.5
    assert compression_ratio("thank you. " * 30) > 2.4
