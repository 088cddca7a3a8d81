"""Gate records: written whole, read back, ignored with a word when damaged."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from edgewise.models.gate_record import FormatRecord, GateRecord, read_record, write_record

DIGEST = "sha256:" + "ab" * 32
INT8 = FormatRecord(
    kind="kv",
    name="int8",
    mean_kl=0.001,
    max_kl=0.1,
    agreement=0.99,
    perplexity=9.0,
    needles=3,
    capacity=1.88,
    bound=0.0015,
    passed=True,
)
RECORD = GateRecord(
    model="m",
    digest=DIGEST,
    measured_at="2026-01-01T00:00:00+00:00",
    text_sha256="00",
    positions=4096,
    needle_lengths=(256, 1024),
    needles=6,
    perplexity=8.9,
    needles_found=3,
    formats=(INT8, replace(INT8, name="fp8", passed=False), replace(INT8, kind="weights", name="bfloat16")),
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_record(tmp_path, DIGEST) is None
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path, DIGEST) == RECORD
    assert RECORD.passed("kv") == {"int8"}
    assert RECORD.failed("kv") == {"fp8"}
    assert RECORD.failed("weights") == set()
    assert RECORD.passed("weights") == {"bfloat16"}
    assert read_record(tmp_path, "sha256:other") is None


@pytest.mark.parametrize("damage", ["cut", "other model", "schema", "field", "verdict", "list"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, damage: str) -> None:
    path = write_record(tmp_path, RECORD)
    raw = {"schema": 1, **asdict(RECORD)}
    match damage:
        case "cut":
            path.write_text(path.read_text()[:-20])
        case "other model":
            path.write_text(json.dumps({**raw, "digest": "sha256:cd"}))
        case "schema":
            path.write_text(json.dumps({**raw, "schema": 2}))
        case "field":
            path.write_text(json.dumps({name: value for name, value in raw.items() if name != "positions"}))
        case "verdict":
            path.write_text(json.dumps({**raw, "formats": [{**asdict(INT8), "passed": "yes"}]}))
        case "list":
            path.write_text("[]")
    assert read_record(tmp_path, DIGEST) is None
