"""`edgewise models pull hf:... | oci:...` as a person runs it, against stand-ins on loopback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.gguf import gguf_bytes
from tests.fakes.hub import COMMIT, Hub, running_hub
from tests.fakes.registry import Registry, running_registry, titled

Run = Callable[..., "subprocess.CompletedProcess[str]"]

BODY = gguf_bytes(bytes(range(256)) * 300)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        running.add("maker/small-GGUF", {"small-Q8_0.gguf": BODY, "README.md": b"# Small"})
        yield running


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        running.push("models/small", [titled("small.gguf", BODY)], "v1")
        yield running


def test_a_model_from_the_hub(here: Run, hub: Hub, tmp_path: Path) -> None:
    env = {"EDGEWISE_SOURCES__HUB_ENDPOINT": hub.api.origin, "HF_TOKEN": "hf_s3cr3t"}
    done = here("models", "pull", "hf:maker/small-GGUF:Q8_0", **env)
    assert done.returncode == 0, done.stderr
    assert "small-q8_0" in done.stdout
    assert "download small-Q8_0.gguf" in done.stderr, "progress, in lines where there is no terminal"
    assert "Left out, no part of the model: README.md" in done.stderr
    assert "hf_s3cr3t" not in done.stdout + done.stderr
    shown = json.loads(here("models", "show", "small-q8_0", "--json").stdout)
    assert shown["source"] == f"hf:maker/small-GGUF@{COMMIT}/small-Q8_0.gguf"
    document = json.loads(here("models", "pull", "hf:maker/small-GGUF", "--name", "mine", "--json", **env).stdout)
    assert [it["name"] for it in document["pulled"]] == ["mine"]
    assert (document["left_out"], document["checked"]) == (["README.md"], True)


def test_a_damaged_model_is_mended_by_its_name_at_the_same_commit(here: Run, hub: Hub, tmp_path: Path) -> None:
    env = {"EDGEWISE_SOURCES__HUB_ENDPOINT": hub.api.origin}
    here("models", "pull", "hf:maker/small-GGUF", "--name", "mine", **env)
    hub.add("maker/small-GGUF", {"small-Q8_0.gguf": gguf_bytes(bytes(64_000))}, commit="d" * 40)
    hub.api.pages["/api/models/maker/small-GGUF/revision/main"] = hub.listing("maker/small-GGUF", "d" * 40)
    (blob,) = (tmp_path / "home" / "models" / "blobs" / "sha256").iterdir()
    blob.chmod(0o644)
    blob.write_bytes(BODY[:-1] + b"?")
    assert here("models", "verify", "mine").returncode == 1
    mended = here("models", "pull", "mine", **env)
    assert mended.returncode == 0, mended.stderr
    assert here("models", "verify", "mine").returncode == 0
    assert json.loads(here("models", "show", "mine", "--json").stdout)["source"].split("@")[1].startswith(COMMIT)


def test_offline_is_a_flag_a_setting_and_can_be_overruled(here: Run, hub: Hub) -> None:
    env = {"EDGEWISE_SOURCES__HUB_ENDPOINT": hub.api.origin}
    place = "hf:maker/small-GGUF"
    for refused in (
        here("models", "pull", place, "--offline", **env),
        here("models", "pull", place, EDGEWISE_OFFLINE="1"),
    ):
        assert refused.returncode == 1
        assert "`offline` is on" in refused.stderr
    assert "`offline` is on" in here("models", "pull", "starter", EDGEWISE_OFFLINE="true").stderr
    assert hub.api.requests == []
    assert here("models", "pull", place, "--no-offline", EDGEWISE_OFFLINE="1", **env).returncode == 0
    again = here("models", "pull", place, "--offline", **env)
    assert again.returncode == 0
    assert "was here already" in again.stderr


def test_a_model_from_a_registry(here: Run, registry: Registry) -> None:
    place = f"oci:{registry.host}/models/small:v1"
    refused = here("models", "pull", place)
    assert refused.returncode != 0
    assert "cannot be reached" in refused.stderr or "not a public address" in refused.stderr
    done = here("models", "pull", place, EDGEWISE_SOURCES__LOCAL_HOSTS="http://127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert "small-v1" in done.stdout


@pytest.mark.parametrize("place", ["hf:../../x", "hf:%2e%2e/x", "hf:a/b@../c", "oci:r.io/../x", "oci:r.io/x@sha256:../x",
                                   "hf:" + "ü" * 300])  # fmt: skip
def test_names_that_lead_elsewhere_write_nothing(place: str, here: Run, tmp_path: Path) -> None:
    done = here("models", "pull", place)
    assert done.returncode == 2
    assert "is not a model's place" in done.stderr
    assert not (tmp_path / "home" / "models").exists()


def test_name_is_for_places(here: Run) -> None:
    done = here("models", "pull", "starter", "--name", "x")
    assert done.returncode == 2
    assert "--name is for models from a place" in done.stderr
    taken = here("models", "pull", "hf:a/b", "--name", "../x")
    assert taken.returncode == 2
