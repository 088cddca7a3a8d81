"""`edgewise models quantize`: a calibrated model in the store, measured beside llama.cpp's rounding; refusals by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from edgewise.models.tiny import make_tiny_model

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_model_is_quantized_and_measured(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny", format="gguf")
    assert here("models", "import", str(tmp_path / "tiny" / "tiny.gguf"), "--name", "tiny").returncode == 0
    done = here("models", "quantize", "tiny", "--to", "int4", "--tokens", "256", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert 0 < document["quality"]["made"]["mean_kl"] < document["quality"]["peer"]["mean_kl"]
    assert document["made"]["name"] == "tiny-int4"
    assert document["made"]["size"] < document["original"]["size"]
    shown = json.loads(here("models", "show", "tiny-int4", "--json").stdout)
    assert shown["source"] == f"quantize:tiny@{document['original']['digest']}"
    assert [it.name for it in (tmp_path / "home").iterdir() if it.name.startswith("quantize-")] == []

    again = here("models", "quantize", "tiny-int4", "--to", "int4", "--tokens", "256")
    assert again.returncode != 0
    assert "4 bits already" in again.stderr


def test_refusals_name_what_is_wrong(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny")
    assert here("models", "import", str(tmp_path / "tiny"), "--name", "tiny").returncode == 0
    for arguments, said in (
        (("tiny", "--to", "int3"), "int8, int4"),
        (("tiny", "--to", "int4", "--wide", "head"), "qkv, output, gate_up, down"),
        (("nothing", "--to", "int8"), "nothing"),
        (("tiny", "--to", "int8"), "convert_hf_to_gguf"),
    ):
        done = here("models", "quantize", *arguments)
        assert done.returncode != 0
        assert said in done.stderr


def test_a_name_is_refused_before_anything_is_read_or_written(here: Run, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny", format="gguf")
    assert here("models", "import", str(tmp_path / "tiny" / "tiny.gguf"), "--name", "tiny").returncode == 0
    kept = tmp_path / "kept.gguf"
    kept.write_text("mine", encoding="utf-8")
    for name, said in ((str(kept.with_suffix("")), "not allowed"), ("tiny", "taken")):
        done = here("models", "quantize", "tiny", "--to", "int8", "--tokens", "256", "--name", name)
        assert done.returncode != 0
        assert said in done.stderr
        assert "reading" not in done.stderr
    assert kept.read_text(encoding="utf-8") == "mine"
