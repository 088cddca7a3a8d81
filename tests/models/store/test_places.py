"""Names of places, and which of a repository's files make a model: pure decisions."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import InvalidRequest, ModelNotFound, UnsupportedModel
from edgewise.models.names import check_name
from edgewise.models.references.choose import choose, quantization
from edgewise.models.references.names import HubName, RegistryName, parse_hub_name, parse_registry_name

MB = 1_000_000
WHERE = "hf:o/n"


@pytest.mark.parametrize(
    ("text", "expected", "model"),
    [
        ("hf:o/n", HubName(owner="o", name="n"), "n"),
        ("hf:Qwen/Qwen2.5-0.5B", HubName(owner="Qwen", name="Qwen2.5-0.5B"), "qwen2.5-0.5b"),
        ("hf:o/n-GGUF:q4_k_m", HubName(owner="o", name="n-GGUF", quant="q4_k_m"), "n-q4_k_m"),
        ("hf:o/n@v1.0", HubName(owner="o", name="n", revision="v1.0"), "n"),
        ("hf:o/n@refs%2Fpr%2F1:Q8_0", HubName(owner="o", name="n", revision="refs/pr/1", quant="Q8_0"), "n-q8_0"),
        ("hf:o/n@abc/sub/x.gguf", HubName(owner="o", name="n", revision="abc", file="sub/x.gguf"), "x"),
        ("hf:o/n/x y.gguf", HubName(owner="o", name="n", file="x y.gguf"), "x-y"),
    ],
)
def test_hub_names(text: str, expected: HubName, model: str) -> None:
    assert parse_hub_name(text) == expected
    assert parse_hub_name(text).model_name == model


@pytest.mark.parametrize(
    ("text", "expected", "model"),
    [
        ("oci:r.io/a/b:v1", RegistryName(host="r.io", repository="a/b", tag="v1"), "b-v1"),
        ("oci:R.io:5000/b", RegistryName(host="r.io:5000", repository="b", tag="latest"), "b"),
        ("oci:[::1]:5000/b", RegistryName(host="[::1]:5000", repository="b", tag="latest"), "b"),
        (
            "oci:docker.io/ai/m:1B-Q4_0",
            RegistryName(host="registry-1.docker.io", repository="ai/m", tag="1B-Q4_0"),
            "m-1b-q4_0",
        ),
        (
            f"oci:r.io/b@sha256:{'a' * 64}",
            RegistryName(host="r.io", repository="b", tag="latest", digest=f"sha256:{'a' * 64}"),
            "b",
        ),
    ],
)
def test_registry_names(text: str, expected: RegistryName, model: str) -> None:
    assert parse_registry_name(text) == expected
    assert parse_registry_name(text).model_name == model


HOSTILE = [
    "../../x", "..", "a/../b", "a/..", "%2e%2e/x", "a/%2e%2e", "a/b\0", "a\\b/c", "/a/b", "a//b", "a/b@", "a/b@../x",
    "a/b@%2e%2e%2f", "a/b@..%2Fx", "a/b/../../x.gguf", "a/b/x/..", "a/b/", "a/b:", "a/b:../x", "é/b", "a/" + "ä" * 300,
    "a/b?x=1", "a/b#x", "a b/c", "user@host/x", "a/b\n", "a/b@x\r\nHost: y", "a", "", "a/" + "b" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("rest", HOSTILE)
def test_names_that_lead_elsewhere_are_refused(rest: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_hub_name(f"hf:{rest}")
    for text in (f"oci:{rest}@sha256:../x", f"oci:r.io/{rest}/.."):
        with pytest.raises(InvalidRequest):
            parse_registry_name(text)


@given(st.text(st.characters(codec="utf-8", max_codepoint=0x2FF) | st.sampled_from("/.@:%-_"), max_size=60))
def test_whatever_is_accepted_stays_in_its_place(rest: str) -> None:
    for parse, prefix in ((parse_hub_name, "hf:"), (parse_registry_name, "oci:")):
        try:
            place = parse(prefix + rest)
        except InvalidRequest:
            continue
        parts = [place.repo, place.file or "x"] if isinstance(place, HubName) else [place.repository]
        for part in parts:
            assert ".." not in part
            assert not set(part) - set(string.ascii_letters + string.digits + "._-/+ ()")
        if place.model_name is not None:
            assert check_name(place.model_name) == place.model_name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"), ("m.q8_0.gguf", "Q8_0"), ("sub/m-IQ2_XXS.gguf", "IQ2_XXS"), ("m-f16.gguf", "F16"),
        ("m_BF16.gguf", "BF16"), ("m-UD-Q4_K_XL.gguf", "Q4_K_XL"), ("model.gguf", None), ("Q4_K_M.gguf", "Q4_K_M"),
    ],
)  # fmt: skip
def test_quantisations_are_read_off_the_name(path: str, expected: str | None) -> None:
    assert quantization(path) == expected


FOLDER = {
    "config.json": 1, "generation_config.json": 1, "tokenizer.json": 1, "tokenizer_config.json": 1, "chat_template.jinja": 1,
    "model.safetensors": MB, "README.md": 1, "pytorch_model.bin": MB, "model.gguf": MB, ".gitattributes": 1,
    "onnx/model.onnx": MB, "original/consolidated.00.pth": MB,
}  # fmt: skip


def test_a_folder_is_taken_as_a_whole() -> None:
    chosen = choose(FOLDER, WHERE)
    assert chosen.format == "safetensors"
    assert set(chosen.paths) == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model.safetensors",
    }  # fmt: skip
    assert set(chosen.paths) | set(chosen.left_out) == set(FOLDER)


def test_the_same_weights_are_not_taken_twice() -> None:
    sizes = {"config.json": 1, "model-00001-of-00002.safetensors": MB, "model-00002-of-00002.safetensors": MB}
    chosen = choose({**sizes, "consolidated.safetensors": 2 * MB}, WHERE)
    assert set(chosen.paths) == set(sizes)
    assert choose({"config.json": 1, "weights.safetensors": MB}, WHERE).paths == ("config.json", "weights.safetensors")


QUANTS = {"m-Q4_K_M.gguf": 4 * MB, "m-Q8_0.gguf": 8 * MB, "mmproj-m-f16.gguf": MB, "m-imatrix.gguf": MB}


def test_several_quantisations_must_be_chosen_from() -> None:
    with pytest.raises(InvalidRequest, match=re.escape("`hf:o/n:Q4_K_M` (4.0 MB), `hf:o/n:Q8_0` (8.0 MB)")):
        choose(QUANTS, WHERE)
    assert choose(QUANTS, WHERE, quant="q4_k_m").paths == ("m-Q4_K_M.gguf",)
    assert choose(QUANTS, WHERE, file="m-Q8_0.gguf").paths == ("m-Q8_0.gguf",)
    with pytest.raises(ModelNotFound, match="it has Q4_K_M, Q8_0"):
        choose(QUANTS, WHERE, quant="Q5_0")
    with pytest.raises(ModelNotFound, match=r"it has .*m-Q8_0\.gguf"):
        choose(QUANTS, WHERE, file="x.gguf")


def test_two_models_in_one_repository_are_named_by_file() -> None:
    sizes = {"a-Q8_0.gguf": MB, "b-Q8_0.gguf": MB}
    with pytest.raises(InvalidRequest, match=r"`hf:o/n/a-Q8_0\.gguf`"):
        choose(sizes, WHERE)
    with pytest.raises(InvalidRequest, match="name one of"):
        choose(sizes, WHERE, quant="Q8_0")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"config.json": 1, "pytorch_model.bin": MB}, "only in pytorch_model.bin"),
        ({"model.pt": MB}, "run code"),
        ({"adapter_config.json": 1, "adapter_model.safetensors": MB}, "adapter"),
        ({"model.safetensors": MB}, "no config.json"),
        ({"README.md": 1}, "neither"),
        ({}, "neither"),
        ({"m-00001-of-00002.gguf": MB, "m-00002-of-00002.gguf": MB}, "split GGUF"),
    ],
)
def test_what_cannot_be_read_is_told(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        choose(sizes, WHERE)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors", "config.json"])
def test_a_single_file_must_be_a_gguf(file: str) -> None:
    with pytest.raises(UnsupportedModel, match="must be a GGUF"):
        choose(FOLDER, WHERE, file=file)
