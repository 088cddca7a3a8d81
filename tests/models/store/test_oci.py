"""`oci:` against a stand-in for a registry: which layers become files, tokens, ranges, platforms, hostile manifests."""

from __future__ import annotations

import base64
import json
import platform
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import (
    BadModelFile,
    ConfigError,
    DigestMismatch,
    InvalidRequest,
    ModelNotFound,
    SourceUnavailable,
    UnsupportedModel,
)
from edgewise.models.catalog import Catalog
from edgewise.models.manifest import Manifest
from edgewise.models.references.resolve import resolve_place
from edgewise.models.references.resolved import Resolved
from edgewise.models.sources.access import Secret, SourceAccess
from edgewise.models.sources.oci import OciSource, RegistryDoor
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from tests.fakes.registry import OCI_INDEX, OCI_MANIFEST, Registry, digest_of, running_registry, titled

REPO = "models/small"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.fixture
def pushed(registry: Registry, payload: bytes) -> str:
    """The digest of an artifact as ORAS pushes one, under the tag v1."""
    return registry.push(REPO, [titled("small.gguf", payload), titled("README.md", b"# Small")], "v1")


def resolve(registry: Registry, what: str, access: SourceAccess | None = None, **options: Any) -> Resolved:
    return resolve_place(f"oci:{registry.host}/{what}", access or registry.access(), Catalog({}), **options)


def pull(store: Store, registry: Registry, what: str, access: SourceAccess | None = None, **options: Any) -> Manifest:
    return store.pull(resolve(registry, what, access, **options).entry)


def installed_bytes(store: Store, name: str) -> bytes:
    (path,) = store.resolve(name).paths.values()
    return path.read_bytes()


def test_a_tag_becomes_a_digest(store: Store, registry: Registry, pushed: str, payload: bytes) -> None:
    manifest = pull(store, registry, f"{REPO}:v1")
    assert (manifest.name, manifest.source) == ("small-v1", f"oci:{registry.host}/{REPO}@{pushed}")
    assert installed_bytes(store, "small-v1") == payload
    assert resolve(registry, f"{REPO}:v1").left_out == ("README.md",)


def test_a_digest_names_exactly_one_manifest(store: Store, registry: Registry, pushed: str) -> None:
    assert pull(store, registry, f"{REPO}@{pushed}").name == "small"
    page = registry.api.pages[f"/v2/{REPO}/manifests/{pushed}"]
    page.body += b" "
    with pytest.raises(DigestMismatch, match="another one"):
        resolve(registry, f"{REPO}@{pushed}")


@pytest.mark.parametrize("seed", range(4))
def test_cut_blobs_are_resumed(seed: int, store: Store, registry: Registry, pushed: str, payload: bytes) -> None:
    rng = random.Random(seed)
    registry.blob(REPO, payload).cuts = [rng.randrange(0, 90_000) for _ in range(4)]
    pull(store, registry, f"{REPO}:v1")
    assert installed_bytes(store, "small-v1") == payload
    assert registry.cdn.sent == len(payload)


def test_wrong_bytes_are_thrown_away(store: Store, registry: Registry, pushed: str, payload: bytes) -> None:
    registry.blob(REPO, payload).body = payload[:-1] + b"?"
    with pytest.raises(DigestMismatch):
        pull(store, registry, f"{REPO}:v1")
    assert store.manifests() == []


def test_a_folder_of_safetensors(store: Store, registry: Registry, tmp_path: Path) -> None:
    made = make_tiny_model(tmp_path / "tiny")
    layers = [titled(path.name, path.read_bytes()) for path in sorted(made.iterdir())]
    registry.push("tiny", layers, "latest")
    assert pull(store, registry, "tiny").info.format == "safetensors"
    paths = store.resolve("tiny").paths
    assert {path.name for path in made.iterdir()} == set(paths)


def test_ollamas_layers(store: Store, registry: Registry, payload: bytes) -> None:
    kind = "application/vnd.ollama.image."
    params = json.dumps({"temperature": 0.6, "top_k": 20, "stop": ["<|im_end|>"], "num_ctx": 4096}).encode()
    layers = [
        ({"mediaType": f"{kind}model"}, payload),
        ({"mediaType": f"{kind}template"}, b"{{ .Prompt }}"),
        ({"mediaType": f"{kind}license"}, b"Apache License"),
        ({"mediaType": f"{kind}params"}, params),
    ]
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    registry.push("library/small", layers, "0.5b", mediaType=docker)
    resolved = resolve(registry, "library/small:0.5b")
    manifest = store.pull(resolved.entry)
    assert [file.name for file in manifest.files] == ["small-0.5b.gguf"]
    assert manifest.info.sampling == {"temperature": 0.6, "top_k": 20}
    assert resolved.left_out == (f"{kind}template", f"{kind}license"), "a Go template is none of ours"


def test_modelpacks_layers(store: Store, registry: Registry, payload: bytes) -> None:
    layer = {
        "mediaType": "application/vnd.cncf.model.weight.v1.raw",
        "annotations": {"org.cncf.model.filepath": "weights/small.Q8_0.gguf"},
    }
    registry.push(REPO, [(layer, payload)], "pack")
    assert [file.name for file in pull(store, registry, f"{REPO}:pack").files] == ["small.Q8_0.gguf"]


@pytest.mark.parametrize(
    "layer",
    [
        {"mediaType": "application/vnd.cncf.model.weight.v1.tar+gzip"},
        {
            "mediaType": "application/octet-stream",
            "annotations": {"io.deis.oras.content.unpack": "true", "org.opencontainers.image.title": "weights"},
        },
        {"mediaType": "application/vnd.ollama.image.adapter"},
    ],
)
def test_archives_and_adapters_are_refused_by_name(layer: dict[str, Any], registry: Registry, payload: bytes) -> None:
    registry.push(REPO, [titled("small.gguf", payload), (layer, b"tar")], "bad")
    with pytest.raises(UnsupportedModel, match=r"archive|adapter"):
        resolve(registry, f"{REPO}:bad")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"annotations": {"org.opencontainers.image.title": "../../evil.gguf"}}, BadModelFile),
        ({"annotations": {"org.opencontainers.image.title": "/etc/evil.gguf"}}, BadModelFile),
        ({"annotations": {"org.opencontainers.image.title": "e\0vil.gguf"}}, InvalidRequest),
        ({"digest": "sha256:../../evil"}, InvalidRequest),
        ({"digest": "sha512:00"}, BadModelFile),
        ({"size": -1}, BadModelFile),
        ({"size": "5"}, BadModelFile),
        ({"annotations": 5}, BadModelFile),
        ({"mediaType": None}, BadModelFile),
    ],
)
def test_hostile_layers_write_nothing(
    change: dict[str, Any], error: type[Exception], store: Store, registry: Registry, payload: bytes
) -> None:
    layer, _ = titled("small.gguf", payload)
    registry.push(REPO, [({**layer, **change}, payload)], "bad")
    with pytest.raises(error):
        pull(store, registry, f"{REPO}:bad")
    assert not store.root.exists()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"layers": 5}', b'{"layers": [1]}', b"[" * 100_000])
def test_malformed_manifests_are_refused(body: bytes, registry: Registry, pushed: str) -> None:
    page = registry.api.pages[f"/v2/{REPO}/manifests/v1"]
    page.body, page.extra = body, {}
    with pytest.raises(BadModelFile):
        resolve(registry, f"{REPO}:v1")


# --- being let in ----------------------------------------------------------------------------------------------------------


def test_a_challenge_is_answered_with_an_anonymous_token(
    store: Store, registry: Registry, pushed: str, payload: bytes
) -> None:
    registry.guard("t0ken")
    pull(store, registry, f"{REPO}:v1")
    assert installed_bytes(store, "small-v1") == payload
    asked = [path for path, _ in registry.api.requests if path.startswith("/token")]
    assert asked[0] == "/token?scope=repository%3Ax%3Apull&service=stand-in"
    assert all("Authorization" not in headers for _, headers in registry.cdn.requests), "the blob's host gets none"
    assert registry.pauses == []


def test_credentials_go_to_the_realm_only(store: Store, registry: Registry, pushed: str) -> None:
    basic = f"Basic {base64.b64encode(b'user:pass').decode()}"
    registry.guard("t0ken", basic=basic)
    pull(store, registry, f"{REPO}:v1", registry.access("user:pass"))
    carriers = {path.split("?")[0] for path, headers in registry.api.requests if headers.get("Authorization") == basic}
    assert carriers == {"/token"}
    with pytest.raises(SourceUnavailable, match="wants credentials, none are in") as caught:
        resolve(registry, f"{REPO}:v1")
    assert "registry_auth_file" in caught.value.message


def test_basic_authentication(store: Store, registry: Registry, pushed: str) -> None:
    basic = f"Basic {base64.b64encode(b'user:pass').decode()}"
    for page in registry.api.pages.values():
        page.auth, page.denied = basic, (401, {"WWW-Authenticate": 'Basic realm="stand-in"'})
    pull(store, registry, f"{REPO}:v1", registry.access("user:pass"))
    with pytest.raises(SourceUnavailable, match="refuses the credentials") as caught:
        resolve(registry, f"{REPO}:v1", registry.access("user:wrong"))
    assert "wrong" not in caught.value.message


def test_a_token_that_runs_out_in_mid_blob_is_replaced(
    store: Store, registry: Registry, pushed: str, payload: bytes
) -> None:
    registry.guard("first")
    registry.blob(REPO, payload).cuts = [100_000]
    resolved = resolve(registry, f"{REPO}:v1")
    store.pull(resolved.entry, lambda _: registry.guard("second"))
    assert installed_bytes(store, "small-v1") == payload
    assert registry.cdn.sent == len(payload)


def test_a_registry_that_refuses_its_own_token_is_left(registry: Registry, pushed: str) -> None:
    registry.guard("t0ken")
    registry.api.pages["/token"].body = b'{"token": "another"}'
    with pytest.raises(SourceUnavailable, match="wants credentials"):
        resolve(registry, f"{REPO}:v1")
    assert len(registry.api.requests) < 10


@pytest.mark.parametrize("challenge", ["", "Negotiate", "Digest realm=x"])
def test_an_unknown_challenge_is_told(challenge: str, registry: Registry, pushed: str) -> None:
    registry.api.pages[f"/v2/{REPO}/manifests/v1"].auth = "never"
    registry.api.pages[f"/v2/{REPO}/manifests/v1"].denied = (401, {"WWW-Authenticate": challenge})
    with pytest.raises(SourceUnavailable, match="unknown here"):
        resolve(registry, f"{REPO}:v1")


def test_credentials_are_not_sent_unencrypted() -> None:
    access = SourceAccess(
        registries={"registry.example": Secret("user:pass")}, http_hosts=frozenset({"registry.example"})
    )
    with pytest.raises(ConfigError, match="not sent unencrypted"):
        RegistryDoor("registry.example", "x", access)._answer('Basic realm="x"')


def test_what_is_not_there_is_told(registry: Registry, pushed: str) -> None:
    with pytest.raises(ModelNotFound, match="check registry, repository, and tag"):
        resolve(registry, f"{REPO}:v2")


# --- indexes ---------------------------------------------------------------------------------------------------------------

MINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def entry(digest: str, system: str | None, machine: str = "") -> dict[str, Any]:
    where = {"platform": {"os": system, "architecture": machine}} if system else {}
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 1, **where}


def test_an_index_is_followed_to_this_machines_manifest(registry: Registry, pushed: str) -> None:
    other = registry.push(REPO, [titled("other.gguf", b"GGUF")])
    entries = [entry(other, "linux", "s390x"), entry(pushed, "linux", MINE), entry(other, "unknown", "unknown")]
    registry.publish(REPO, {"mediaType": OCI_INDEX, "manifests": entries}, "multi")
    assert resolve(registry, f"{REPO}:multi").entry.origin.endswith(pushed)


def test_a_lone_entry_or_one_without_a_platform_fits_any_machine(registry: Registry, pushed: str) -> None:
    other = registry.push(REPO, [titled("other.gguf", b"GGUF")])
    lone = [entry(pushed, "linux", "s390x"), entry(other, "unknown", "unknown")]
    registry.publish(REPO, {"mediaType": OCI_INDEX, "manifests": lone}, "lone")
    registry.publish(
        REPO, {"mediaType": OCI_INDEX, "manifests": [entry(other, "linux", "s390x"), entry(pushed, None)]}, "open"
    )
    for tag in ("lone", "open"):
        assert resolve(registry, f"{REPO}:{tag}").entry.origin.endswith(pushed)


def test_an_index_without_a_fitting_manifest_says_what_it_has(registry: Registry, pushed: str) -> None:
    entries = [entry(pushed, "linux", "s390x"), entry(pushed, "windows", "amd64")]
    registry.publish(REPO, {"mediaType": OCI_INDEX, "manifests": entries}, "none")
    with pytest.raises(UnsupportedModel, match="linux/s390x, windows/amd64"):
        resolve(registry, f"{REPO}:none")


def test_a_catalog_entry_may_name_a_repository(
    store: Store, registry: Registry, pushed: str, payload: bytes, entry_for: Any
) -> None:
    sha256 = digest_of(payload).removeprefix("sha256:")
    source = OciSource(host=registry.host, repository=REPO, sha256=sha256, access=registry.access())
    store.pull(entry_for(payload, source))
    assert installed_bytes(store, "made-up") == payload
