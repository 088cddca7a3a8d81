"""Real device services for tests, drills and acceptance: a temporary state directory, a real `edgewise serve`, always ended.

The starter model is pulled once into a cache that all runs share; each state directory links to it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from edgewise.models.files import ModelFiles
from edgewise.models.manifest import Role
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from scripts.service import DeviceService, edgewise_command, edgewise_environment

STARTER = "smollm2-135m-instruct"
PULL_TIMEOUT_S = 900
TOKEN_BY_TOKEN = {"EDGEWISE_ENGINE__STREAM_INTERVAL_S": "0"}
"""For what is done or measured between two tokens, which otherwise travel several at a time."""


def cache_dir() -> Path:
    """Where downloaded models stay between runs."""
    return Path(os.environ.get("EDGEWISE_TEST_HOME") or Path.home() / ".cache" / "edgewise-tests")


def edgewise(home: Path, *args: str, timeout_s: float = 120, environment: Mapping[str, str] | None = None) -> str:
    """Run one `edgewise` command in a state directory, with further variables; returns its standard output.

    Raises:
        RuntimeError: It failed; the message carries its output.
    """
    command = edgewise_command(*args)
    done = subprocess.run(
        command,
        env=edgewise_environment(home, environment),
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise RuntimeError(f"edgewise {' '.join(args)}: code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def starter_home() -> Path:
    """A state directory that holds the starter model, pulled on first use."""
    return _pulled_into(cache_dir())


@cache
def _pulled_into(folder: Path) -> Path:
    """Once per process: the command takes a second even where all is there."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    with (folder / "home.lock").open("w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        edgewise(home, "models", "pull", STARTER, timeout_s=PULL_TIMEOUT_S)
    return home


def starter_model() -> ModelFiles:
    """The starter model's files, for use inside this process."""
    return Store(starter_home() / "models").resolve(STARTER)


@contextmanager
def new_home(*, starter: bool = True) -> Iterator[Path]:
    """A temporary state directory; with `starter` it shares the cached model store."""
    with tempfile.TemporaryDirectory(prefix="edgewise-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        if starter:
            (home / "models").symlink_to(starter_home() / "models")
        yield home


def import_tiny(home: Path, name: str = "tiny", **options: Any) -> str:
    """Make a tiny random model (options: fields of `edgewise.models.tiny.TinyModel`) and import it; returns its name."""
    import_model(home, make_tiny_model(home / f"{name}-source", **options), name)
    return name


def import_model(home: Path, folder: Path, name: str, role: Role = "llm") -> None:
    """What `edgewise models import` does, without the process; the command has its own tests (tests/cli)."""
    Store(home / "models").import_path(folder, name, role=role)


def suite_limits() -> dict[str, str]:
    """Settings for services of the suite, which share few cores; none where OMP_NUM_THREADS is not set.

    The engine has the caller's OMP_NUM_THREADS, as it takes all cores otherwise, and measures no forms of encoders beside
    requests: each service's fresh home would have it do so for minutes.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    return {"EDGEWISE_ENGINE__THREADS": threads, "EDGEWISE_ENGINE__ENCODER_TUNING": "off"} if threads else {}


@contextmanager
def running(
    *flags: str,
    model: str = STARTER,
    home: Path | None = None,
    environment: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    **options: Any,
) -> Iterator[DeviceService]:
    """A ready `edgewise serve` on a free port, ended when the block is left.

    Args:
        flags: Further flags of `edgewise serve`.
        model: What it serves.
        home: State directory; a temporary one with the starter model by default.
        environment: `EDGEWISE_*` settings for it.
        prefix: Command to start it under, e.g. `ip netns exec NAME`.
        options: Further arguments of `DeviceService`.
    """
    if home is None:
        with (
            new_home() as made,
            running(
                *flags, model=model, home=made, environment=environment, host=host, prefix=prefix, **options
            ) as service,
        ):
            yield service
        return
    all_flags = ("--model", model, *flags)
    environment = {**suite_limits(), **(environment or {})}
    with DeviceService(home, all_flags, environment=environment, host=host, prefix=prefix, **options) as service:
        yield service
