from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.models.names import MAX_NAME, check_file_name, check_name, suggest_name
from edgewise.models.store import Store
from tests.fakes.gguf import gguf_bytes

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "../../x",
    "a/b",
    "a/../b",
    "/etc/passwd",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "..\\x",
    "C:x",
    "a\0b",
    "\0",
    ".hidden",
    "trailing.",
    "a..b",
    "-flag",
    "--name",
    "a b",
    "a\nb",
    "a\n",
    "Qwen",
    "modèle",
    "mode\u0300le",
    "ｍodel",
    "模型",
    "x" * 300,
    "é" * 300,
    "con",
    "nul",
    "com1",
    "lpt9.gguf",
    "aux.tar.gz",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_everywhere(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    for use in (check_name, store.resolve, store.manifest, store.remove):
        with pytest.raises(InvalidRequest) as caught:
            use(name)
        assert caught.value.param == "model"
        assert caught.value.http_status == 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "0", "smollm2-135m-instruct", "qwen2.5-0.5b_q4", "console", "a" * MAX_NAME])
def test_ordinary_names_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["config.json", "SmolLM2-135M.Q4_1.gguf", "model-00001-of-00002.safetensors"])
def test_ordinary_file_names_pass(name: str) -> None:
    assert check_file_name(name) == name


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x.", "NUL", "nul.txt", "a\0", "é", "x" * 201, "a..b", "-x"])
def test_hostile_file_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_file_name(name)


def test_the_message_suggests_a_name_that_works() -> None:
    with pytest.raises(InvalidRequest, match=r"'qwen-qwen3-0\.6b'"):
        check_name("Qwen/Qwen3-0.6B")


@given(st.text())
def test_a_suggestion_is_always_valid(text: str) -> None:
    suggestion = suggest_name(text)
    assert suggestion is None or check_name(suggestion) == suggestion


@given(st.one_of(st.text(), st.text(alphabet="./\\%2eE0\0ab-_~:", max_size=12)))
def test_no_name_leads_out_of_the_store(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        gguf = Path(folder) / "x.gguf"
        gguf.write_bytes(gguf_bytes(b"x"))
        store = Store(root, reserve_bytes=0)
        try:
            store.import_path(gguf, name)
        except EdgewiseError:
            assert not root.exists()
        else:
            assert (root / "manifests" / f"{name}.json").is_file()
        assert sorted(path.name for path in Path(folder).iterdir()) in (["models", "x.gguf"], ["x.gguf"])
        manifests = root / "manifests"
        if manifests.exists():
            assert [path.name for path in manifests.iterdir()] == [f"{name}.json"]
