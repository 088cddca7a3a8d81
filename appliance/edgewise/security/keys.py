"""API keys: named, scoped, expiring, revocable; stored as hashes in SQLite.

A key is `ew_<id>_<secret>` with a public id of 8 characters and a secret of 256 random bits. Its SHA-256 is stored. A slow
password hash would add nothing: it defends guessable passwords, while nobody enumerates 2^256 secrets; and a fast one keeps
the check on every request at some ten microseconds on the smallest device.

The database is in WAL mode with full synchronisation: a key that was shown to its owner survives a power cut (sqlite.org,
"Write-Ahead Logging", "PRAGMA synchronous"). The service and the command line may have it open at the same time; each check
reads the database, so that a revocation holds from the next request on.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import string
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import InvalidRequest, NotFound, StorageError
from edgewise.core.files import make_folder, own_like_parent, translate_os_errors
from edgewise.core.priority import PriorityName, priority_of
from edgewise.core.privacy import PrivacyName, privacy_of

Scope = Literal["inference", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
DEFAULT_PRIORITY: PriorityName = "interactive"

_ID_ALPHABET = string.digits + string.ascii_lowercase
_ID_CHARS = 8
_SECRET_BYTES = 32
_TOKEN = re.compile(r"ew_([0-9a-z]{8})_([A-Za-z0-9_-]{43})", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NO_DIGEST = bytes(32)
_BUSY_TIMEOUT_S = 10.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS live_names ON keys (name) WHERE revoked_at IS NULL;
"""
_INSERT = """
INSERT INTO keys (id, name, digest, scopes, created_at, expires_at, priority, privacy, device)
VALUES (:id, :name, :digest, :scopes, :created_at, :expires_at, :priority, :privacy, :device)
"""
# Each entry takes a database from the version that is its index to the next (PRAGMA user_version).
_MIGRATIONS = (
    _SCHEMA,
    "ALTER TABLE keys ADD COLUMN priority TEXT NOT NULL DEFAULT 'interactive';",
    "ALTER TABLE keys ADD COLUMN privacy TEXT;",
    "ALTER TABLE keys ADD COLUMN device TEXT;"
    "CREATE UNIQUE INDEX IF NOT EXISTS live_devices ON keys (device) WHERE revoked_at IS NULL;",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """What is known about a key; the key itself is known to its owner only.

    Attributes:
        id: Public part of the key; also identifies the tenant.
        scopes: What it may do; "admin" includes the others.
        priority: Deadline class of its requests; they may ask for a less urgent one, never for a more urgent one.
        privacy: Label of its requests; they may ask for a stricter one, never for a laxer one. None takes the default.
        device: Name of the only device that may use it, on a cloud; that device is its tenant over MQTT too. None: any.
        created_at, expires_at, revoked_at: Seconds since the Unix epoch; None is never.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    priority: PriorityName = DEFAULT_PRIORITY
    privacy: PrivacyName | None = None
    device: str | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def usable(self, now: float) -> bool:
        """Whether the key is neither revoked nor expired at `now` (seconds since the epoch)."""
        return self.state(now) == "active"

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"


class KeyStore:
    """The keys of one device. Safe to use from several threads and beside other processes.

    Args:
        path: Database file; created with its folder at the first use, readable by its owner only.

    Raises:
        StorageError: From every method, when the disk or the database refuses.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"KeyStore({str(self._path)!r}, open={self._connection is not None})"

    def __enter__(self) -> KeyStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def create(
        self,
        name: str,
        scopes: Iterable[str] = ("inference",),
        *,
        expires_at: float | None = None,
        ttl_s: float | None = None,
        priority: str = DEFAULT_PRIORITY,
        privacy: str | None = None,
        device: str | None = None,
    ) -> tuple[KeyRecord, str]:
        """Make a key; durable on return.

        Args:
            name: 1 to 64 letters, digits and `._@-`; unique among the keys that are not revoked.
            scopes: Any of `SCOPES`.
            expires_at: Seconds since the epoch; or
            ttl_s: seconds from now. Neither: the key does not expire.
            priority: One of `PRIORITY_NAMES`; also the most urgent class that the key's requests may ask for.
            privacy: One of `PRIVACY_NAMES`; also the laxest label that the key's requests may ask for. None: the default.
            device: Name at the broker of the device that it is bound to; one key that is not revoked for each.

        Returns:
            The record, and the key in plain text, which cannot be had again.

        Raises:
            InvalidRequest: Name or device taken or malformed, unknown scope, class or label, or an expiry that is not in the
                future.
        """
        now = self._clock.time()
        if ttl_s is not None:
            if expires_at is not None:
                raise InvalidRequest("give either a time of expiry or a time to live, not both", param="expires_at")
            expires_at = now + ttl_s
        record = KeyRecord(
            id="".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS)),
            name=_checked_name(name),
            scopes=_checked_scopes(scopes),
            created_at=now,
            expires_at=_checked_expiry(expires_at, now),
            priority=_checked_priority(priority),
            privacy=_checked_privacy(privacy),
            device=_checked_device(device),
        )
        token = f"ew_{record.id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        values = {
            "id": record.id,
            "name": name,
            "digest": _digest(token),
            "scopes": " ".join(sorted(record.scopes)),
            "created_at": now,
            "expires_at": record.expires_at,
            "priority": record.priority,
            "privacy": record.privacy,
            "device": record.device,
        }
        with self._database() as database:
            try:
                database.execute(_INSERT, values)
            except sqlite3.IntegrityError as error:
                if "keys.device" in str(error):
                    raise InvalidRequest(
                        f"the device `{device}` has a key already; revoke that first", param="device"
                    ) from error
                raise InvalidRequest(
                    f"a key named `{name}` exists; revoke it first or take another name", param="name"
                ) from error
        return record, token

    def verify(self, token: str) -> KeyRecord | None:
        """The record of a valid key, else None: malformed, unknown, revoked and expired look the same from outside.

        The row is found by the public id; the hash of the secret is compared in constant time, also when there is no row.
        """
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        with self._database() as database:
            row = database.execute("SELECT * FROM keys WHERE id = ?", (match[1],)).fetchone()
        genuine = hmac.compare_digest(_NO_DIGEST if row is None else row["digest"], _digest(token))
        if row is None or not genuine:
            return None
        record = _record(row)
        return record if record.usable(self._clock.time()) else None

    def of_device(self, device: str) -> KeyRecord | None:
        """The key that is bound to a device: the one that is not revoked, else the last one that was. None: there never was one.

        The caller looks at its `state`: a device whose key has ended is not one that never had any.
        """
        query = (
            "SELECT * FROM keys WHERE device = ? ORDER BY revoked_at IS NULL DESC, created_at DESC, rowid DESC LIMIT 1"
        )
        with self._database() as database:
            row = database.execute(query, (device,)).fetchone()
        return None if row is None else _record(row)

    def list(self) -> list[KeyRecord]:
        """All keys, also revoked and expired ones, oldest first."""
        with self._database() as database:
            return [_record(row) for row in database.execute("SELECT * FROM keys ORDER BY created_at, rowid")]

    def revoke(self, id_or_name: str) -> KeyRecord:
        """End a key at once; it stays listed. Durable on return.

        Raises:
            NotFound: There is no such key that is not revoked already.
        """
        query = "UPDATE keys SET revoked_at = ? WHERE (id = ? OR name = ?) AND revoked_at IS NULL RETURNING *"
        with self._database() as database:
            rows = database.execute(query, (self._clock.time(), id_or_name, id_or_name)).fetchall()
        if not rows:
            raise NotFound(f"no key `{id_or_name}` that could be revoked; `edgewise keys list` shows all")
        return _record(rows[0])

    def check(self) -> str:
        """SQLite's own verdict on the file: "ok", or the first damage found."""
        with self._database() as database:
            return str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The connection, inside one transaction and with SQLite's errors in our words."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _connect(self._path)
                with self._connection:
                    yield self._connection
            except sqlite3.Error as error:
                raise StorageError(_explain(error, self._path)) from error


def _connect(path: Path) -> sqlite3.Connection:
    make_folder(path.parent, mode=0o750)
    with translate_os_errors("create", path):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            own_like_parent(path)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date, one transaction a step. The version is read again under the lock: another may be at it."""
    while _version(connection) < len(_MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)
        if version < len(_MIGRATIONS):
            for statement in filter(str.strip, _MIGRATIONS[version].split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _explain(error: sqlite3.Error, path: Path) -> str:
    text = str(error)
    if "full" in text:
        return f"cannot write {path}: the disk is full; free space, nothing was lost"
    if "readonly" in text or "unable to open" in text:
        return f"cannot open or write {path}: {text}; run as the user that owns it and check that the disk is writable"
    if "malformed" in text or "not a database" in text:
        return f"{path} is damaged ({text}); restore it from a backup, or move it away and create new keys"
    return f"{path}: {text}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("ascii")).digest()


def _record(row: Any) -> KeyRecord:
    scopes = frozenset(scope for scope in SCOPES if scope in row["scopes"].split())
    return KeyRecord(
        id=row["id"],
        name=row["name"],
        scopes=scopes,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        priority=priority_of(row["priority"]).label,
        privacy=None if row["privacy"] is None else privacy_of(row["privacy"]).label,
        device=row["device"],
    )


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"key name {name[:80]!r} is refused: 1 to 64 letters, digits and ._@- beginning with a letter or digit",
            param="name",
        )
    return name


def _checked_device(device: str | None) -> str | None:
    if device is not None and not _DEVICE.fullmatch(device):
        raise InvalidRequest(
            f"device name {device[:80]!r} is refused: 1 to 64 letters, digits, '.', '_' or '-'", param="device"
        )
    return device


def _checked_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    wanted = set(scopes)
    unknown = sorted(wanted - set(SCOPES))
    if unknown or not wanted:
        raise InvalidRequest(f"unknown scopes {unknown}: choose from {', '.join(SCOPES)}", param="scopes")
    return frozenset(scope for scope in SCOPES if scope in wanted)


def _checked_priority(priority: str) -> PriorityName:
    try:
        return priority_of(priority).label
    except ValueError as error:
        raise InvalidRequest(f"unknown class: {error}", param="priority") from error


def _checked_privacy(privacy: str | None) -> PrivacyName | None:
    try:
        return None if privacy is None else privacy_of(privacy).label
    except ValueError as error:
        raise InvalidRequest(f"unknown label: {error}", param="privacy") from error


def _checked_expiry(expires_at: float | None, now: float) -> float | None:
    if expires_at is not None and not now < expires_at < float("inf"):
        raise InvalidRequest("the expiry of a key must lie in the future", param="expires_at")
    return expires_at
