"""Ray on this machine, started and ended with the service: small, on loopback, with logical resources only.

Ray is an executor here and holds no truth: no Serve, no job of Ray's, no restart by Ray. What its processes know is lost when one
of them dies, and nothing depends on it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from edgewise.core.errors import ConfigError
from edgewise.core.log import get_logger

log = get_logger(__name__)

RESOURCE: Final = "edgewise_replica"
"""Ray's logical resource: a replica takes one, and there are as many as replicas may run."""

_OBJECT_STORE_BYTES: Final = 80 * 1024**2  # Ray's least; chunks of tokens do not even pass through it
_PREFIX: Final = "edgewise-ray-"
_LOCK: Final = "edgewise.lock"
_YOUNG_S: Final = 60.0  # a folder that another process may be about to lock
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for a node on 127.0.0.1; by default it takes an outer address
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # resources are logical: a replica sees the devices that the service sees
}
_SYSTEM_CONFIG: Final[Mapping[str, Any]] = {
    "enable_metrics_collection": False,
    "memory_monitor_refresh_ms": 0,  # our ledger bounds memory; Ray's monitor would kill replicas when others use it up
}


def check_ray() -> None:
    """Raises `ConfigError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "`intake.executor` is \"ray\", but the package ray is not installed: pip install 'edgewise[ray]', or set it to "
            '"local".'
        )


class RayCluster:
    """One Ray instance of this process's own.

    `start` and `stop` block for seconds and must be called from one thread that lives in between: Ray's processes die with
    the thread that started them.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._folder: Path | None = None
        self._lock: TextIO | None = None
        self.ray: Any = None

    def start(self) -> None:
        """Start Ray's processes; `ray` is the package then."""
        os.environ.update(_ENVIRONMENT)  # read by Ray when it is first imported
        import ray

        remove_stale(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # short: paths of Unix sockets have at most 107 bytes
        self._lock = _hold(self._folder / _LOCK)
        ray.init(
            address="local",  # never somebody else's
            num_cpus=1,
            num_gpus=0,
            resources={RESOURCE: float(self._replicas)},
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._folder),
            _system_config=dict(_SYSTEM_CONFIG),
        )
        self.ray = ray

    def stop(self) -> None:
        """End them all and remove what they wrote. Safe to call twice."""
        if self.ray is not None:
            self.ray.shutdown()
            self.ray = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def actor(self, kind: type, *args: Any) -> Any:
        """A new actor of `kind`, which Ray never restarts by itself; its methods run concurrently."""
        remote = self.ray.remote(kind)
        return remote.options(
            num_cpus=0, resources={RESOURCE: 1}, max_restarts=0, max_task_retries=0, max_concurrency=10_000
        ).remote(*args)


def remove_stale(where: Path) -> list[Path]:
    """Remove what services of this user that were killed left of Ray in the folder `where`; returns what was removed.

    The folder of a service that lives is locked by it.
    """
    removed = []
    for folder in where.glob(f"{_PREFIX}*"):
        if _is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
            log.info("ray_folder_removed", folder=str(folder))
    return removed


def _is_stale(folder: Path) -> bool:
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
            return False
        _hold(folder / _LOCK).close()
    except OSError:  # gone meanwhile, held by a service that lives, or not ours to judge
        return False
    return True


def _hold(path: Path) -> TextIO:
    """Lock a file until it is closed or this process ends; raises `BlockingIOError` where another one holds it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
