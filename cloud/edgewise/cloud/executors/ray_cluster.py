"""Ray on this machine, started and ended with the service: small, on loopback, with logical resources only. Or a cluster that is
there already, of which this machine is a node: it is joined and left again.

Ray is an executor here and holds no truth: no Serve, no job of Ray's, no restart by Ray. What its processes know is lost when one
of them dies, and nothing depends on it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO
from uuid import uuid4

from edgewise.core.errors import ConfigError, EngineUnavailable
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
_INHERITED: Final = ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",)
"""What replicas on an outer cluster need to be told of it: its own processes do not have this environment."""
_REACH_S: Final = 5.0
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
    """One Ray instance of this process's own, or an outer one.

    `start` and `stop` block for seconds and must be called from one thread that lives in between: Ray's processes die with
    the thread that started them.

    Args:
        replicas: That may run at once, on an instance of its own.
        address: Of the outer cluster's head (GCS), as "10.0.0.5:6379"; None starts an instance of its own.
    """

    def __init__(self, replicas: int, address: str | None = None) -> None:
        self._replicas = replicas
        self._address = address
        self._folder: Path | None = None
        self._lock: TextIO | None = None
        self.ray: Any = None

    def start(self) -> None:
        """Start Ray's processes, or join the cluster; `ray` is the package then.

        Raises:
            EngineUnavailable: The outer cluster cannot be joined; the message names the address.
        """
        os.environ.update(_ENVIRONMENT)  # read by Ray when it is first imported
        import ray

        if self._address is None:
            self._start_own(ray)
        else:
            self._join(ray, self._address)
        self.ray = ray

    def _start_own(self, ray: Any) -> None:
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

    def _join(self, ray: Any, address: str) -> None:
        """As a driver with a namespace of its own. Its actors end with it; whatever else runs there is not touched."""
        _check_reached(address)
        environment = {name: _ENVIRONMENT[name] for name in _INHERITED}
        try:
            ray.init(
                address=address,
                namespace=f"edgewise-{uuid4().hex}",
                log_to_driver=False,
                configure_logging=False,
                runtime_env={"env_vars": environment},
            )
        except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            raise EngineUnavailable(
                f"The Ray cluster at {address} (intake.ray_address) cannot be joined: {str(error)[:300]}. This machine must be a "
                "node of it (`ray start --address ...`), with the same versions of Ray and Python; where it asks for a token, "
                "set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH for this service as for its nodes."
            ) from error
        if not ray.cluster_resources().get(RESOURCE):
            log.warning("ray_without_places", address=address, remedy=f"ray start --resources '{{\"{RESOURCE}\": 2}}'")

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

    @property
    def hint(self) -> str:
        """What may be missing where no replica comes."""
        if self._address is None:
            return ""
        return f" Has a node of the cluster at {self._address} the resource '{RESOURCE}', and the models in the same folder?"

    def actor(self, kind: type, *args: Any) -> Any:
        """A new actor of `kind`, which Ray never restarts by itself; its methods run concurrently."""
        remote = self.ray.remote(kind)
        return remote.options(
            num_cpus=0, resources={RESOURCE: 1}, max_restarts=0, max_task_retries=0, max_concurrency=10_000
        ).remote(*args)


def _check_reached(address: str) -> None:
    """Ray itself would try for minutes. Raises `EngineUnavailable`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise EngineUnavailable(
            f"No Ray cluster answers at {address} (intake.ray_address): {error}. Is its head there (`ray start --head`)?"
        ) from error


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
