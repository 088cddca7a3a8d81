"""Keys for the cloud engine that devices are given at enrolment: one for each, for inference only, ended with the device.

They are written into the key store of a cloud engine on this machine, which reads it at each request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from edgewise.core.errors import NotFound, StorageError
from edgewise.security.keys import KeyStore

_NAME = "fleet."  # of keys that the fleet made, before the device's uid: the only ones that it ends


class CloudKeys:
    """Blocking calls, which threads may make. `close` when done.

    Args:
        path: `keys.db` of the cloud engine.

    Raises:
        StorageError: From `issue` and `revoke`: there is no such store, or it refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = KeyStore(path)

    def close(self) -> None:
        self._store.close()

    def issue(self, uid: str) -> str:
        """A key that only this device may use, in place of the one that the fleet gave it before.

        Raises:
            InvalidRequest: Somebody has bound a key of their own to this device.
        """
        self.revoke([uid])
        return self._store.create(_NAME + uid, ("inference",), device=uid)[1]

    def revoke(self, uids: Collection[str]) -> None:
        """End what the fleet gave these devices, where they have any."""
        if not uids:
            return
        if not self._path.exists():
            raise StorageError(f"fleet.cloud_keys: {self._path} is not there; it is `keys.db` of the cloud engine.")
        wanted = {_NAME + uid for uid in uids}
        for record in self._store.list():
            if record.name in wanted and record.revoked_at is None:
                with contextlib.suppress(NotFound):  # somebody else was quicker
                    self._store.revoke(record.id)
