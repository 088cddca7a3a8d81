"""Models of this device, brought and taken away for a fleet: the same store and catalog as `edgewise models`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from edgewise.core.errors import Cancelled, DigestMismatch, EdgewiseError, ModelNotFound
from edgewise.core.settings import Settings
from edgewise.models.catalog import load_catalog
from edgewise.models.catalog_types import CatalogEntry
from edgewise.models.manifest import Manifest, Role, manifest_digest
from edgewise.models.progress import Progress, ProgressSink
from edgewise.models.references.resolve import installed_from, is_place, resolve_place
from edgewise.models.sources.access import source_access
from edgewise.models.store import Store
from edgewise.pipeline.model import Models, pinned_error
from edgewise.wire.fleet import ModelState

_LOOK_S = 0.5
_GRACE_S = 20.0

Report = Callable[[str, float | None], Awaitable[None]]
"""Told a step and how much of it is done, in percent."""


class Installer:
    """Args:
    models: The service's, which notices by itself what changes in the store.
    """

    def __init__(self, settings: Settings, models: Models) -> None:
        self._settings = settings
        self._models = models
        self._store = Store(settings.home / "models", offline=settings.offline)

    async def manifests(self) -> list[Manifest]:
        return await asyncio.to_thread(self._store.manifests)

    async def find(self, name: str) -> Manifest | None:
        """The installed model of that name."""
        return next((one for one in await self.manifests() if one.name == name), None)

    async def states(self) -> list[ModelState]:
        """Every installed model, and whether it is loaded."""
        loaded = {one.name for one in self._models.status().models if one.state == "loaded"}
        return [
            ModelState(name=one.name, digest=one.digest, role=one.info.role, bytes=one.size, loaded=one.name in loaded)
            for one in await self.manifests()
        ]

    async def pull(
        self, what: str, *, name: str | None, digest: str | None, role: Role, report: Report
    ) -> list[Manifest]:
        """Install a model or set of the catalog, or a model from a place. Cancelling it ends the transfer, which the next pull
        goes on with.

        Raises:
            DigestMismatch: It is another model than `digest`; nothing was fetched.
            EdgewiseError: As `Store.pull` and `resolve_place`.
        """
        latest: list[Progress] = []
        stop = threading.Event()

        def sink(progress: Progress) -> None:
            if stop.is_set():
                raise Cancelled("The pull was cancelled.")
            latest[:] = [progress]

        work = asyncio.ensure_future(asyncio.to_thread(self._pull, what, name, digest, role, sink))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                if latest:
                    await report(*_shown(latest[0]))
        except BaseException:
            stop.set()
            await asyncio.wait({work}, timeout=_GRACE_S)
            raise
        return work.result()

    async def remove(self, name: str) -> int:
        """Bytes freed. Requests that use it end first.

        Raises:
            InvalidRequest: It is pinned. ModelNotFound: It is not installed.
        """
        if name in {one.name for one in self._models.pinned()}:
            raise pinned_error(name)
        removed = await asyncio.to_thread(self._store.remove, name)
        await self._models.cards()  # gives up what is removed
        return removed.freed

    def _pull(self, what: str, name: str | None, digest: str | None, role: Role, sink: ProgressSink) -> list[Manifest]:
        access = source_access(self._settings)
        catalog = load_catalog(self._settings.home / "catalog.d", access)
        store = Store(self._settings.home / "models", catalog=lambda: catalog, offline=self._settings.offline)
        if not is_place(what):
            entries: list[CatalogEntry] = [*catalog.select(what)]
        elif access.offline:
            return [installed_from(what, store, name)]
        else:
            entries = [resolve_place(what, access, catalog, name=name, role=role, progress=sink).entry]
        for entry in entries:
            _check_digest(entry, digest)
        return [store.pull(entry, sink) for entry in entries]


async def load(models: Models, name: str) -> None:
    """Load a model, unless it is: one that is right is never loaded again."""
    if any(one.name == name and one.state == "loaded" for one in models.status().models):
        return
    await models.load(name)


async def unload(models: Models, name: str) -> None:
    """Unload a model; one that is not installed is not loaded either."""
    try:
        await models.unload(name)
    except ModelNotFound:
        return


def _check_digest(entry: CatalogEntry, digest: str | None) -> None:
    found = manifest_digest(item.file for item in entry.files)
    if digest is not None and found != digest:
        raise DigestMismatch(f"{entry.name}: the source has {found}, and {digest} is wanted. Nothing was fetched.")


def _shown(progress: Progress) -> tuple[str, float | None]:
    percent = None if not progress.total else round(min(100.0, 100 * progress.done / progress.total), 1)
    return f"{progress.phase} {progress.item}"[:200], percent


def lasting(error: EdgewiseError) -> bool:
    """Whether trying again cannot help, as far as the error says."""
    return not error.retryable and error.http_status != 507
