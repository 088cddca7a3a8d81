"""A real PostgreSQL for tests: a server of its own in a temporary folder, from the machine's packages.

It runs as an unprivileged account, since it refuses root, listens on a Unix socket only, and does not wait for the disk.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

_PORT = 5432  # only names the socket in the folder
_START_S = 60


@dataclass
class PostgresServer:
    """A running server."""

    folder: Path
    user: str
    run: Callable[..., object] = field(repr=False)
    """Runs a program as the server's account."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, name: str = "postgres") -> str:
        """SQLAlchemy's URL of a database."""
        return f"postgresql+psycopg://{self.user}@/{name}?host={self.folder}&port={_PORT}"

    def start(self) -> None:
        """Again after `kill`; what was committed is there."""
        options = f"-k {self.folder} -p {_PORT} -c listen_addresses= -c fsync=off -c max_connections=60 -c shared_buffers=32MB"
        self.run([*self._control, "-w", "-l", str(self.folder / "log"), "-o", options, "start"])

    def kill(self) -> None:
        """Without a goodbye to anybody."""
        self.run([*self._control, "-m", "immediate", "stop"])

    @property
    def _control(self) -> list[str]:
        programs = _programs()
        assert programs is not None
        return [str(programs / "pg_ctl"), "-D", str(self.folder / "data")]

    def create(self) -> str:
        """A new, empty database; its name."""
        name = f"test_{next(self._numbers)}"
        address = f"host={self.folder} port={_PORT} user={self.user} dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Skips the test where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="edgewise-pg-"))
    try:
        if account is not None:
            shutil.chown(folder, account)
        user = account or pwd.getpwuid(os.geteuid()).pw_name
        run: dict[str, Any] = {"check": True, "capture_output": True, "cwd": folder, "timeout": _START_S}
        if account is not None:
            run |= {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": ()}
        initdb = [str(programs / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", user]
        server = PostgresServer(folder, user, partial(subprocess.run, **run))
        server.run([*initdb, "-E", "UTF8", "--locale=C.UTF-8", "-N"])
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """The folder of the newest version; Debian does not put them on the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda path: int(path.parent.name), default=None)


def _account() -> str | None:
    """An account without rights, where this one is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    pytest.skip("there is no unprivileged account to run PostgreSQL as")
