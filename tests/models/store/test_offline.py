"""The offline switch, and what the operator's settings give sources."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ConfigError, InvalidRequest
from edgewise.core.settings import Settings
from edgewise.models.catalog import BUILT_IN, Catalog, CatalogEntry, load_catalog
from edgewise.models.references.resolve import installed_from, resolve_place
from edgewise.models.sources.access import Secret, SourceAccess, read_registry_auth, source_access
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.sources.hub import HubSource
from edgewise.models.sources.oci import OciSource
from edgewise.models.sources.source import Offline
from edgewise.models.store import Store

EntryFor = Callable[..., CatalogEntry]
COMMIT = "c" * 40


@pytest.fixture
def offline(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "models", reserve_bytes=0, offline=True)


def network_sources(url: str) -> list[Any]:
    https = HttpsSource(url=url, allow_http=True, allow_private=True)
    hub = HubSource(repo="o/n", commit=COMMIT, path="x.gguf")
    return [https, hub, OciSource(host="r.io", repository="x", sha256="0" * 64), BUILT_IN[0].files[0].sources[0]]


@pytest.mark.parametrize("number", range(4))
def test_every_networked_source_fails_at_once_and_names_the_switch(
    number: int, offline: Store, server: Any, payload: bytes, entry_for: EntryFor
) -> None:
    source = network_sources(server.url("/m.gguf"))[number]
    with pytest.raises(Offline, match="EDGEWISE_OFFLINE") as caught:
        offline.pull(entry_for(payload, source))
    assert source.label in caught.value.message
    assert not caught.value.retryable
    assert server.requests == []
    assert not offline.root.exists()


def test_a_file_is_used_where_the_network_may_not_be(
    offline: Store, server: Any, payload: bytes, entry_for: EntryFor, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(payload)
    entry = entry_for(payload, *network_sources(server.url("/m.gguf")), FileSource(tmp_path / "m.gguf"))
    offline.pull(entry)
    assert offline.resolve("made-up").paths["made-up.gguf"].read_bytes() == payload
    assert server.requests == []


def test_what_is_installed_needs_nothing(
    offline: Store, server: Any, payload: bytes, entry_for: EntryFor, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(payload)
    first = offline.pull(entry_for(payload, FileSource(tmp_path / "m.gguf")))
    same = entry_for(payload, FileSource(tmp_path / "m.gguf"), *network_sources(server.url("/m.gguf")))
    assert offline.pull(same) == first


@pytest.mark.parametrize("place", ["hf:o/n", "oci:r.io/x:v1"])
def test_places_are_not_resolved(place: str) -> None:
    with pytest.raises(Offline, match="--no-offline"):
        resolve_place(place, SourceAccess(offline=True), Catalog({}))


def test_what_a_place_brought_is_found_again(store: Store, payload: bytes, entry_for: EntryFor, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(payload)
    entry = entry_for(payload, FileSource(tmp_path / "m.gguf"))
    origin = f"hf:o/n@{COMMIT}/m-Q8_0.gguf"
    manifest = store.pull(CatalogEntry(name="m", info=entry.info, files=entry.files, origin=origin))
    for place in ("hf:o/n", "hf:o/n@main", f"hf:o/n@{COMMIT}", "hf:o/n:Q8_0", "hf:o/n/m-Q8_0.gguf"):
        assert installed_from(place, store) == manifest
    for place in ("hf:o/other", f"hf:o/n@{'d' * 40}", "hf:o/n:Q4_0", "oci:o/n", "hf:o/n/x.gguf"):
        with pytest.raises(Offline):
            installed_from(place, store)
    with pytest.raises(Offline):
        installed_from("hf:o/n", store, "another-name")
    with pytest.raises(InvalidRequest):
        installed_from("hf:../x", store)


# --- settings --------------------------------------------------------------------------------------------------------------


def settings(**sources: Any) -> Settings:
    return Settings.model_validate({"sources": sources})


def test_the_token_comes_from_the_file_or_else_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hf_file\n")
    assert source_access(settings(), {}).hub_token is None
    assert source_access(settings(), {"HF_TOKEN": " hf_env\n"}).hub_token == Secret("hf_env")
    both = source_access(settings(hub_token_file=file), {"HF_TOKEN": "hf_env"})
    assert both.hub_token == Secret("hf_file")
    assert "hf_file" not in repr(both)


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff\xfe", None])
def test_a_file_that_holds_no_token_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"hub_token_file") as caught:
        source_access(settings(hub_token_file=file), {})
    assert "two words" not in caught.value.message


def test_a_mirror_may_lie_on_the_lan() -> None:
    access = source_access(
        settings(hub_endpoint="http://Mirror.lan:8080/hf/", local_hosts=["nas.local", "http://box"]), {}
    )
    assert access.hub_endpoint == "http://Mirror.lan:8080/hf"
    assert access.http_hosts == {"mirror.lan", "box"}
    assert access.policy.private_hosts == {"mirror.lan", "nas.local", "box"}
    assert access.scheme("box:5000") == "http"
    assert access.scheme("nas.local") == "https"
    assert source_access(settings(), {}).policy.private_hosts == frozenset()


@pytest.mark.parametrize("endpoint", ["ftp://x", "huggingface.co", "https://user@x", "https://x?y", "https://"])
def test_an_endpoint_is_a_base_url(endpoint: str) -> None:
    with pytest.raises(ValueError):
        settings(hub_endpoint=endpoint)


def test_registry_credentials_are_read_as_docker_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    auth = base64.b64encode(b"user:pass").decode()
    auths = {"https://index.docker.io/v1/": {"auth": auth}, "Registry.local:5000": {"auth": auth}, "helper.io": {}}
    file.write_text(json.dumps({"auths": auths}))
    found = read_registry_auth(file)
    assert found == {name: Secret("user:pass") for name in ("registry-1.docker.io", "registry.local:5000")}
    assert source_access(settings(registry_auth_file=file), {}).registries == found


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"auths": {"x": {"auth": "?"}}}', '{"auths": 5}', '{"auths": {"x": {}}}']
)
def test_credentials_in_another_form_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="registry_auth_file"):
        read_registry_auth(tmp_path / "config.json")


def write_catalog(folder: Path, source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.toml").write_text(
        f'[[model]]\nname = "own"\ninfo = {{ role = "llm", format = "gguf", licence_model = "MIT" }}\n'
        f'[[model.files]]\nname = "own.gguf"\nsha256 = "{"a" * 64}"\nsize = 5\nsources = [{source}]\n'
    )


def test_catalog_files_may_name_the_hub_and_registries(tmp_path: Path) -> None:
    write_catalog(tmp_path, f'{{ hf = "o/n@{COMMIT}/x.gguf" }}, {{ oci = "r.io/models/x" }}')
    access = SourceAccess(hub_endpoint="https://mirror.example")
    hub, registry = load_catalog(tmp_path, access).entries["own"].files[0].sources
    assert hub.label == f"hf:o/n@{COMMIT}/x.gguf"
    assert isinstance(hub, HubSource)
    assert hub.url == f"https://mirror.example/o/n/resolve/{COMMIT}/x.gguf"
    assert registry.label == f"oci:r.io/models/x@sha256:{'a' * 64}"


@pytest.mark.parametrize("source", ['{ hf = "o/n" }', '{ hf = "o/n/x.gguf" }', '{ hf = "../x@y/z" }', '{ oci = "x" }',
                                    '{ oci = "r.io/x", url = "https://x" }'])  # fmt: skip
def test_catalog_sources_without_a_revision_or_file_are_refused(source: str, tmp_path: Path) -> None:
    write_catalog(tmp_path, source)
    with pytest.raises(ConfigError, match=r"own\.toml is refused"):
        load_catalog(tmp_path)
