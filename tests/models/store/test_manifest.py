from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import BadModelFile
from edgewise.models.manifest import Manifest, ModelInfo, StoredFile, manifest_digest, parse_manifest

FILE_A = StoredFile(name="a.json", sha256="a" * 64, size=3)
FILE_B = StoredFile(name="b.safetensors", sha256="b" * 64, size=5)
MANIFEST = Manifest(
    name="m",
    files=(FILE_A, FILE_B),
    info=ModelInfo(role="llm", format="safetensors", licence_model="MIT", context=2048),
    source="import:/x",
    installed_at="2030-01-01T00:00:00Z",
)


def test_the_digest_is_what_sha256sum_lines_hash_to() -> None:
    lines = f"{'a' * 64}  a.json\n{'b' * 64}  b.safetensors\n"
    expected = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    assert manifest_digest([FILE_B, FILE_A]) == expected == MANIFEST.digest


def test_a_manifest_survives_its_round_trip() -> None:
    assert parse_manifest(MANIFEST.to_json(), where="x") == MANIFEST


def test_the_time_of_installation_in_seconds() -> None:
    assert MANIFEST.installed_seconds == 1_893_456_000


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"digest": "sha256:" + "0" * 64},
        {"name": "../x"},
        {"files": []},
        {"files": [{"name": "../x", "sha256": "a" * 64, "size": 1}]},
        {"files": [{"name": "x", "sha256": "../../../etc/passwd", "size": 1}]},
        {"files": [{"name": "x", "sha256": "a" * 64, "size": -1}]},
        {"files": [{"name": "x", "sha256": "a" * 64, "size": True}]},
        {"files": "x"},
        {"info": {"role": "llm", "format": "gguf", "licence_model": "MIT", "surprise": 1}},
        {"info": {"role": "king", "format": "gguf", "licence_model": "MIT"}},
        {"source": 1},
        {"installed_at": "yesterday"},
        {"installed_at": "2030-02-30T00:00:00Z"},
    ],
)
def test_a_changed_manifest_is_refused_by_name(change: dict[str, Any]) -> None:
    raw = {**json.loads(MANIFEST.to_json()), **change}
    with pytest.raises(BadModelFile, match=r"^m\.json "):
        parse_manifest(json.dumps(raw).encode(), where="m.json")


@given(st.data())
def test_no_cut_or_flipped_manifest_passes_as_another(data: st.DataObject) -> None:
    good = MANIFEST.to_json()
    position = data.draw(st.integers(0, len(good) - 2))
    damaged = good[:position] + bytes([data.draw(st.integers(0, 255))]) + good[position + 1 :]
    try:
        parsed = parse_manifest(damaged, where="m.json")
    except BadModelFile:
        return
    # Not the sizes, which the digest does not cover: a blob of another size counts as cut.
    assert [(file.name, file.sha256) for file in parsed.files] == [(file.name, file.sha256) for file in MANIFEST.files]


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(BadModelFile):
        parse_manifest(noise, where="m.json")


@pytest.mark.parametrize("noise", [b"[" * 100_000, b"9" * 5000, b"x" * ((1 << 20) + 1)])
def test_noise_made_to_hurt_is_refused(noise: bytes) -> None:
    with pytest.raises(BadModelFile):
        parse_manifest(noise, where="m.json")
