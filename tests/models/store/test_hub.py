"""`hf:` against a stand-in for the hub with a CDN at another origin: pinning, resuming, tokens, refusals and what they advise."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import (
    BadModelFile,
    ConfigError,
    DigestMismatch,
    EdgewiseError,
    InvalidRequest,
    ModelNotFound,
    NotPermitted,
    SourceUnavailable,
)
from edgewise.models.catalog import Catalog, CatalogEntry, load_catalog
from edgewise.models.manifest import Manifest
from edgewise.models.references.resolve import resolve_place
from edgewise.models.references.resolved import Resolved
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.attempts import MAX_ATTEMPTS
from edgewise.models.sources.hub import HubSource
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.security.fetch import UrlRefused
from tests.fakes.hub import COMMIT, Hub, running_hub
from tests.fakes.model_server import Page

REPO = "maker/small-GGUF"
FILE = "small-Q4_K_M.gguf"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def gguf(hub: Hub, payload: bytes) -> Page:
    """A repository with one GGUF; its page at the CDN."""
    hub.add(REPO, {FILE: payload, "README.md": b"# Small"}, cardData={"license": "apache-2.0"})
    return hub.stored(payload)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A whole tiny model in two shards, and what repositories have beside one."""
    made = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", shards=2)
    files = {path.name: path.read_bytes() for path in sorted(made.iterdir())}
    return {**files, "pytorch_model.bin": b"\x80\x04pickle", "README.md": b"# Tiny", "onnx/model.onnx": bytes(60_000)}


def resolve(place: str, access: SourceAccess, **options: Any) -> Resolved:
    return resolve_place(place, access, Catalog({}), **options)


def pull(store: Store, place: str, access: SourceAccess, **options: Any) -> Manifest:
    return store.pull(resolve(place, access, **options).entry)


def installed_bytes(store: Store, name: str) -> bytes:
    (path,) = store.resolve(name).paths.values()
    return path.read_bytes()


def test_a_gguf_arrives_pinned_by_commit(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    manifest = pull(store, f"hf:{REPO}", hub.access())
    assert manifest.name == "small-q4_k_m"
    assert manifest.source == f"hf:{REPO}@{COMMIT}/{FILE}"
    assert (manifest.info.format, manifest.info.licence_model) == ("gguf", "apache-2.0")
    assert manifest.info.parameters, "read from the header"
    assert installed_bytes(store, "small-q4_k_m") == payload


def test_a_folder_arrives_with_its_companions_and_without_pickles(
    store: Store, hub: Hub, folder: dict[str, bytes]
) -> None:
    hub.add("maker/tiny", folder)
    resolved = resolve("hf:maker/tiny", hub.access())
    assert set(resolved.left_out) == {"pytorch_model.bin", "README.md", "onnx/model.onnx"}
    manifest = store.pull(resolved.entry)
    assert {name: path.read_bytes() for name, path in store.resolve("tiny").paths.items()} == {
        name: data for name, data in folder.items() if name not in resolved.left_out
    }
    assert manifest.source == f"hf:maker/tiny@{COMMIT}"
    assert (manifest.info.chat_template, manifest.info.format) == ("in-file", "safetensors")
    assert manifest.info.context, "read from config.json"
    again = store.pull(resolve("hf:maker/tiny", hub.access()).entry)
    assert again == manifest, "an unchanged place is not installed anew"


def test_a_missing_shard_is_said_before_weights_are_fetched(hub: Hub, folder: dict[str, bytes]) -> None:
    hub.add("maker/tiny", {name: data for name, data in folder.items() if "00002-of" not in name})
    with pytest.raises(BadModelFile, match=r"lacks 'model-00002-of-00002.safetensors'"):
        resolve("hf:maker/tiny", hub.access())
    assert hub.cdn.requests == []


def test_a_revision_becomes_its_commit(store: Store, hub: Hub, payload: bytes) -> None:
    old = "f" * 40
    hub.add(REPO, {FILE: b"new" * 100_000})
    hub.add(REPO, {FILE: payload}, commit=old)
    hub.api.pages[f"/api/models/{REPO}/revision/refs%2Fpr%2F1"] = hub.listing(REPO, old)
    manifest = pull(store, f"hf:{REPO}@refs%2Fpr%2F1", hub.access())
    assert manifest.source == f"hf:{REPO}@{old}/{FILE}"
    assert installed_bytes(store, manifest.name) == payload


def test_a_newer_commit_replaces_the_model(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    pull(store, f"hf:{REPO}", hub.access())
    newer = payload[:-1] + b"!"
    hub.add(REPO, {FILE: newer}, commit="e" * 40)
    hub.api.pages[f"/api/models/{REPO}/revision/main"] = hub.listing(REPO, "e" * 40)
    assert pull(store, f"hf:{REPO}", hub.access()).source.startswith(f"hf:{REPO}@{'e' * 40}")
    assert installed_bytes(store, "small-q4_k_m") == newer


def test_another_repository_does_not_take_the_name(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    pull(store, f"hf:{REPO}", hub.access())
    hub.add("other/small-GGUF", {FILE: payload[:-1] + b"!"})
    with pytest.raises(InvalidRequest, match="is taken by another model"):
        pull(store, "hf:other/small-GGUF", hub.access())
    assert pull(store, "hf:other/small-GGUF", hub.access(), name="other").name == "other"


def test_names_of_the_catalog_are_not_given_away(hub: Hub, gguf: Page) -> None:
    with pytest.raises(InvalidRequest, match="names a model of the catalog"):
        resolve_place(f"hf:{REPO}", hub.access(), load_catalog(), name="smollm2-135m-instruct")
    with pytest.raises(InvalidRequest, match="names a set"):
        resolve_place(f"hf:{REPO}", hub.access(), load_catalog(), name="starter")


# --- connections that break ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_cut_connections_are_resumed_at_any_offset(
    seed: int, store: Store, hub: Hub, gguf: Page, payload: bytes
) -> None:
    rng = random.Random(seed)
    gguf.cuts = [rng.randrange(0, 90_000) for _ in range(4)]
    pull(store, f"hf:{REPO}", hub.access())
    assert installed_bytes(store, "small-q4_k_m") == payload
    assert hub.cdn.sent == len(payload), "every byte crossed the wire once"
    assert len({path for path, _ in hub.cdn.requests}) == 1


def test_small_files_are_read_again_after_a_cut(store: Store, hub: Hub, folder: dict[str, bytes]) -> None:
    hub.add("maker/tiny", folder)
    hub.file("maker/tiny", "config.json").cuts = [10, 0]
    pull(store, "hf:maker/tiny", hub.access())
    assert store.resolve("tiny").paths["config.json"].read_bytes() == folder["config.json"]


def test_an_etag_that_changes_between_attempts_begins_anew(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    gguf.body, gguf.etag, gguf.cuts = b"old!" * (len(payload) // 4), '"old"', [100_000]
    resolved = resolve(f"hf:{REPO}", hub.access())

    def replace(_: object) -> None:
        gguf.body, gguf.etag = payload, '"new"'

    store.pull(resolved.entry, replace)
    assert installed_bytes(store, "small-q4_k_m") == payload


def test_a_redirect_loop_ends(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    resolved = resolve(f"hf:{REPO}", hub.access())
    page = hub.file(REPO, FILE)
    page.location = hub.api.url(f"/{REPO}/resolve/{COMMIT}/{FILE}")
    with pytest.raises(SourceUnavailable, match="redirects more than"):
        store.pull(resolved.entry)
    assert store.manifests() == []


def test_a_silent_server_is_given_up(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    gguf.slow = 30.0
    with pytest.raises(SourceUnavailable, match="timed out"):
        pull(store, f"hf:{REPO}", hub.access(timeout_s=0.05))
    assert len(hub.pauses) >= MAX_ATTEMPTS - 1  # more where the hub's list was late too


def test_a_slow_server_is_waited_for(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    gguf.slow = 0.02
    pull(store, f"hf:{REPO}", hub.access())
    assert installed_bytes(store, "small-q4_k_m") == payload
    assert hub.pauses == []


def test_the_hub_may_ask_for_a_pause(store: Store, hub: Hub, gguf: Page) -> None:
    hub.listing(REPO).statuses, hub.listing(REPO).extra = [429], {"Retry-After": "9"}
    hub.file(REPO, FILE).statuses = [503]
    pull(store, f"hf:{REPO}", hub.access())
    assert hub.pauses[0] == 9
    assert len(hub.pauses) == 2


def test_a_long_pause_is_told_instead_of_slept(hub: Hub, gguf: Page) -> None:
    hub.listing(REPO).statuses, hub.listing(REPO).extra = [429], {"Retry-After": "3600"}
    with pytest.raises(SourceUnavailable, match="left alone for 3600 s") as caught:
        resolve(f"hf:{REPO}", hub.access())
    assert caught.value.retry_after_s == 3600
    assert hub.pauses == []


# --- wrong bytes -----------------------------------------------------------------------------------------------------------


def test_a_wrong_digest_is_thrown_away(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    gguf.body = payload[:-1] + b"?"
    with pytest.raises(DigestMismatch, match="not the expected file"):
        pull(store, f"hf:{REPO}", hub.access())
    assert store.manifests() == []
    assert store.leftovers() == 0


@pytest.mark.parametrize(
    ("header", "value", "message"),
    [
        ("X-Linked-ETag", '"' + "0" * 64 + '"', "announces"),
        ("X-Linked-Size", "5", "5 bytes, 300000 were expected"),
        ("X-Repo-Commit", "a" * 40, "instead of the pinned one"),
    ],
)
def test_what_the_hub_announces_must_be_what_was_pinned(
    header: str, value: str, message: str, store: Store, hub: Hub, gguf: Page
) -> None:
    hub.file(REPO, FILE).extra[header] = value
    with pytest.raises((DigestMismatch, SourceUnavailable), match=message):
        pull(store, f"hf:{REPO}", hub.access())
    assert store.manifests() == []


def test_a_wrong_size_at_the_cdn_is_refused(store: Store, hub: Hub, gguf: Page, payload: bytes) -> None:
    gguf.body = payload + b"more"
    with pytest.raises(SourceUnavailable, match="it is another file"):
        pull(store, f"hf:{REPO}", hub.access())


def test_a_small_file_must_have_the_listed_git_id(hub: Hub, folder: dict[str, bytes]) -> None:
    hub.add("maker/tiny", folder)
    page = hub.file("maker/tiny", "config.json")
    page.body = page.body.replace(b"1", b"2", 1)
    with pytest.raises(DigestMismatch, match=r"config.json is not the file that the hub lists"):
        resolve("hf:maker/tiny", hub.access())


@pytest.mark.parametrize("path", ["../../../etc/evil.gguf", "/abs.gguf", "a/../b.gguf", "a\\b.gguf", "nul\0.gguf", ""])
def test_a_hostile_listing_writes_nothing(path: str, store: Store, hub: Hub, gguf: Page, tmp_path: Path) -> None:
    document = json.loads(hub.listing(REPO).body)
    document["siblings"].append({**document["siblings"][0], "rfilename": path})
    hub.listing(REPO).body = json.dumps(document).encode()
    with pytest.raises(BadModelFile, match="Nothing was fetched"):
        resolve(f"hf:{REPO}", hub.access())
    assert not store.root.exists()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"sha": "main", "siblings": []}', b"[" * 100_000])
def test_something_that_is_no_hub_is_told(body: bytes, hub: Hub, gguf: Page) -> None:
    hub.listing(REPO).body = body
    with pytest.raises(SourceUnavailable, match=r"no JSON|no listing|no commit"):
        resolve(f"hf:{REPO}", hub.access())


# --- tokens and refusals ---------------------------------------------------------------------------------------------------


def test_the_token_reaches_the_hub_and_nobody_else(
    store: Store, hub: Hub, gguf: Page, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.require("hf_s3cr3t")
    access = hub.access("hf_s3cr3t")
    resolved = resolve(f"hf:{REPO}", access)
    store.pull(resolved.entry)
    assert all(headers["Authorization"] == "Bearer hf_s3cr3t" for _, headers in hub.api.requests)
    assert hub.cdn.requests
    assert all("Authorization" not in headers for _, headers in hub.cdn.requests)
    shown = f"{access!r} {access.hub_token} {resolved!r} {store.manifest('small-q4_k_m').to_json()!r}"
    assert "hf_s3cr3t" not in shown + "".join(capfd.readouterr())


def test_an_unencrypted_endpoint_elsewhere_gets_no_token(hub: Hub) -> None:
    access = dataclasses.replace(hub.access("hf_s3cr3t"), hub_endpoint="http://hub.example")
    with pytest.raises(ConfigError, match="not sent unencrypted") as caught:
        resolve("hf:maker/x", access)
    assert "hf_s3cr3t" not in caught.value.message


@pytest.mark.parametrize("token", [None, "hf_old"])
@pytest.mark.parametrize(
    ("status", "code", "kind", "anonymous", "known"),
    [
        (401, "GatedRepo", NotPermitted, "accept its terms at", "ask for it at"),
        (403, "GatedRepo", NotPermitted, "accept its terms at", "ask for it at"),
        (401, "RepoNotFound", ModelNotFound, "it is private: then make a read token", "may not see it"),
        (404, "RepoNotFound", ModelNotFound, "Check the spelling", "Check the spelling"),
        (404, "RevisionNotFound", ModelNotFound, "no such revision", "no such revision"),
        (404, "EntryNotFound", ModelNotFound, "no such file", "no such file"),
        (401, "", EdgewiseError, "is not there, or it is private", "refuses the token"),
        (403, "", NotPermitted, "may say why", "may say why"),
    ],
)
def test_refusals_name_the_remedy(
    status: int,
    code: str,
    kind: type[EdgewiseError],
    anonymous: str,
    known: str,
    token: str | None,
    hub: Hub,
    gguf: Page,
) -> None:
    hub.listing(REPO).statuses, hub.listing(REPO).extra = [status], {"X-Error-Code": code}
    with pytest.raises(kind) as caught:
        resolve(f"hf:{REPO}", hub.access(token))
    assert (anonymous if token is None else known) in caught.value.message
    assert "hf_old" not in caught.value.message
    assert hub.pauses == []


def test_a_refusal_in_the_middle_names_the_remedy(store: Store, hub: Hub, gguf: Page) -> None:
    resolved = resolve(f"hf:{REPO}", hub.access())
    page = hub.file(REPO, FILE)
    page.statuses, page.extra = [403], {**page.extra, "X-Error-Code": "GatedRepo"}
    with pytest.raises(SourceUnavailable, match="accept its terms at"):
        store.pull(resolved.entry)


def test_a_redirect_to_a_private_host_that_nobody_named_is_refused(store: Store, hub: Hub, gguf: Page) -> None:
    hub.file(REPO, FILE).location = f"http://127.0.0.2:{hub.cdn.port}/x"
    with pytest.raises(UrlRefused):
        pull(store, f"hf:{REPO}", hub.access())


def test_a_catalog_entry_may_name_a_file_at_the_hub(
    store: Store, hub: Hub, gguf: Page, payload: bytes, entry_for: Any
) -> None:
    source = HubSource(repo=REPO, commit=COMMIT, path=FILE, access=hub.access())
    entry: CatalogEntry = entry_for(payload, source)
    assert store.pull(entry).source == f"hf:{REPO}@{COMMIT}/{FILE}"


def test_the_stand_in_is_understood_by_the_hubs_own_client(
    hub: Hub, gguf: Page, payload: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What our source is tested against is the protocol that huggingface_hub speaks, not one of our own invention."""
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    from huggingface_hub import HfApi, constants, hf_hub_download

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the suite runs with it set; this hub is on loopback
    info = HfApi(endpoint=hub.api.origin, token=False).model_info(REPO, revision="main", files_metadata=True)
    assert info.sha == COMMIT
    assert info.siblings is not None
    (large,) = (item for item in info.siblings if item.rfilename == FILE)
    assert large.lfs is not None
    assert (large.size, large.lfs.sha256) == (len(payload), hashlib.sha256(payload).hexdigest())
    (asked,) = hub.api.requests
    resolve(f"hf:{REPO}", hub.access())
    assert hub.api.requests[1][0] == asked[0].replace("blobs=True", "blobs=true"), "we ask as it does"
    for name, data in ((FILE, payload), ("README.md", b"# Small")):
        path = hf_hub_download(REPO, name, revision=COMMIT, endpoint=hub.api.origin, cache_dir=tmp_path, token=False)
        assert Path(path).read_bytes() == data
