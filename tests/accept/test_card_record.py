"""The record of a card counts for the code that it was made with, and for no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.accept import card_record
from tests.accept.line import NotRun


def test_a_record_of_this_code_counts_and_says_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the kept one is of this code is for the acceptance lines to say: whoever changes an encoder may have no card."""
    kept = json.loads(card_record.PATH.read_text()) | {"code": card_record.code_digest()}
    monkeypatch.setattr(card_record, "PATH", tmp_path / "cards.json")
    card_record.PATH.write_text(json.dumps(kept))
    for line in ("senses_3", "senses_4"):
        record = card_record.recorded(line)
        assert record["faults"] == []
        assert record["on"].startswith("NVIDIA")


def test_a_record_of_other_code_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.loads(card_record.PATH.read_text()) | {"code": "0" * 64}
    monkeypatch.setattr(card_record, "PATH", tmp_path / "cards.json")
    card_record.PATH.write_text(json.dumps(other))
    with pytest.raises(NotRun, match="other code"):
        card_record.recorded("senses_4")


def test_no_record_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_record, "PATH", tmp_path / "none.json")
    with pytest.raises(NotRun, match="no record"):
        card_record.recorded("senses_3")
