"""The models of the store, each of which can be asked by name: opened when first asked, loaded by the pool."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.core.modality import Modality
from edgewise.core.patience import end_task
from edgewise.core.settings import Settings
from edgewise.engine.api import Engine, EngineInfo
from edgewise.engine.machine import Machine
from edgewise.engine.pool.entry import FOREVER, Entry, State, again
from edgewise.engine.pool.pool import EnginePool
from edgewise.engine.pool.pooled import PooledEncoder, PooledEngine, PooledPictures
from edgewise.models.catalog import SETS, member_for_role
from edgewise.models.manifest import Manifest, Role
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.names import check_name
from edgewise.models.store import Store
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.model import (
    ModelCard,
    Models,
    ModelState,
    ModelStatus,
    Observed,
    PoolStatus,
    Served,
    ServedEncoder,
    ServedModel,
    ServedPictures,
    card_of,
    no_encoder,
    no_pictures,
    pinned_error,
    role_of,
    unknown_model,
    wrong_role,
)
from edgewise.serving.adapters import (
    AdaptedModels,
    adapter_name,
    base_of,
    card_of_adapter,
    engine_name,
    no_base,
    require_kernels,
    whole_name,
)
from edgewise.serving.encoders import ENCODER_ROLES, ReadEncoder
from edgewise.serving.pictures import ReadPictures
from edgewise.serving.reading import AnyRead, read_any

FORGET_S = 60.0
"""A model that was opened and never loaded is closed after so long, when another one is opened."""

_STATES: Mapping[State, ModelState] = {
    "cold": "unloaded",
    "waiting": "waiting",
    "loading": "loading",
    "ready": "loaded",
    "unloading": "unloading",
}
_CHAT = {"in-file": True, "none": False, "unknown": None}
_Stamp = tuple[int, int, int]
_Pooled = PooledEngine | PooledPictures | PooledEncoder


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that has been opened: its key in the pool, the manifest it was opened by, and its engine's handle."""

    key: str
    digest: str
    stamp: _Stamp
    engine: _Pooled


@dataclass(slots=True)
class _Opened:
    """What of a known model is in memory."""

    read: AnyRead
    served: Served
    asked: float


class InstalledModels(Models):
    """See `pipeline.model.Models`. `settings.model` and `settings.pool.pinned` are loaded at start, the others when asked.

    Args:
        machine: What is there for all engines together.
        pool: Where they are loaded.
        preload: Whether any is loaded at start; without, this process may never need an engine.

    Attributes:
        first: Names of the models that are loaded at start.
    """

    def __init__(
        self, settings: Settings, store: Store, machine: Machine, pool: EnginePool, *, preload: bool = True
    ) -> None:
        super().__init__()
        self._settings = settings
        self._store = store
        self._machine = machine
        self._pool = pool
        asked = (settings.model, *settings.pool.pinned) if preload else ()
        self.first = tuple(dict.fromkeys(_plain(name) for name in asked))
        held = asked if settings.pool.pin_model else asked[1:]
        self._pinned = tuple(dict.fromkeys(_plain(name) for name in held))
        self._allowed = frozenset(_plain(name) for name in settings.models) | {*self.first}
        self._keep_alive = dict(_keep_alive(text) for text in settings.pool.keep_alive)
        self._known: dict[str, _Known] = {}
        self._opened: dict[str, _Opened] = {}
        self._opening: dict[str, asyncio.Task[Served]] = {}
        self._adapted = AdaptedModels(store)
        self._media: dict[str, tuple[MediaKind, ...]] = {}
        self._numbers = itertools.count(1)
        pool.on_unloaded = self._unloaded

    async def open_first(self) -> None:
        """Open what is to be loaded at start, the configured model first. Raises why one cannot be served; nothing runs then."""
        for name in self.first:
            await asyncio.to_thread(self._store.resolve, name)  # its error names the command that installs the model
            await self.open(name)

    def start(self) -> None:
        """Begin to load the pinned models; returns at once."""
        self._pool.start_pinned()

    async def wait_ready(self, name: str) -> EngineInfo:
        """Wait for the engine of a model that is loaded at start. Raises why it cannot be loaded."""
        known = self._known[name]
        if name in self._pinned:
            info: EngineInfo = await self._pool.wait_ready(known.key)
            return info
        assert isinstance(known.engine, PooledEngine)
        return await known.engine.load()

    async def close(self) -> None:
        """End every engine and every process of a template."""
        await end_task(*self._opening.values())
        await self._pool.close()
        for opened in self._opened.values():
            opened.read.close()
        self._opened.clear()

    # --- what the API asks -------------------------------------------------------------------------------------------

    def all(self) -> tuple[ServedModel, ...]:
        own = [one.served for name, one in self._opened.items() if name == base_of(name)]
        return tuple(served for served in (*own, *self._adapted.served()) if isinstance(served, ServedModel))

    def pinned(self) -> tuple[ServedModel, ...]:
        return tuple(model for model in self.all() if model.name in self._pinned)

    def absent(self) -> tuple[str, ...]:
        return tuple(name for name in self._pinned if name not in self._opened)

    def engines(self) -> Mapping[str, Engine]:
        return {name: known.engine for name, known in self._known.items() if isinstance(known.engine, PooledEngine)}

    def observed(self) -> Mapping[str, Observed]:
        return {name: known.engine for name, known in self._known.items()}

    async def cards(self) -> tuple[ModelCard, ...]:
        """Those that are loaded at start come first: who does not care takes the first one."""
        installed = await self._installed()
        manifests = self._asked(installed)
        for manifest in manifests:
            if manifest.info.role == "llm" and manifest.digest not in self._media:
                self._media[manifest.digest] = await asyncio.to_thread(_media, self._store, manifest.name)
        by_name = {manifest.name: manifest for manifest in installed}
        cards = [self._card(manifest) for manifest in manifests if manifest.info.role != "adapter"]
        adapters = [manifest for manifest in manifests if manifest.info.base in by_name]
        for manifest in adapters:
            known = self._known.get(engine_name(manifest.info.base))
            loaded = known is not None and known.engine.state == "ready"
            cards.append(card_of_adapter(manifest, self._card(by_name[manifest.info.base]), loaded=loaded))
        order = {name: number for number, name in enumerate(self.first)}
        return tuple(sorted(cards, key=lambda card: (order.get(card.name, len(order)), card.role != "llm", card.name)))

    def status(self) -> PoolStatus:
        book, now = self._pool.book, time.monotonic()
        return PoolStatus(
            budget_bytes=book.budget,
            granted_bytes=book.granted,
            loads=self._pool.loads,
            evictions=self._pool.evictions,
            models=tuple(self._status(entry, now) for entry in book.entries()),
        )

    def get(self, name: str) -> ServedModel:
        if (adapted := self._adapted.get(name)) is not None:
            return adapted
        opened = self._opened.get(_plain(name))
        if opened is None or not isinstance(opened.served, ServedModel):
            raise unknown_model(name, [model.name for model in self.all()])
        return opened.served

    async def open(self, name: str, *, keep_alive_s: float | None = None) -> ServedModel:
        served = await self._open_any(_plain(name), name, keep_alive_s)
        if not isinstance(served, ServedModel):
            raise wrong_role(served.name, role_of(served))
        return served

    async def open_pictures(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedPictures:
        if name is None:
            name = next((one.name for one in await self._manifests() if one.info.role == "diffusion"), None)
            if name is None:
                raise no_pictures()
        plain = member_for_role(name, "diffusion") if name in SETS else name
        served = await self._open_any(plain, name, keep_alive_s)
        if not isinstance(served, ServedPictures):
            raise wrong_role(served.name, role_of(served))
        return served

    async def open_encoder(self, role: Role, name: str | None, *, keep_alive_s: float | None = None) -> ServedEncoder:
        name = await self._first_of(role) if name is None else name
        plain = member_for_role(name, role) if name in SETS else name
        served = await self._open_any(plain, name, keep_alive_s)
        if not isinstance(served, ServedEncoder) or served.role != role:
            raise wrong_role(served.name, role_of(served))
        return served

    async def open_listener(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedListener:
        name = await self._first_of("speech-to-text") if name is None else name
        plain = member_for_role(name, "speech-to-text") if name in SETS else name
        served = await self._open_any(plain, name, keep_alive_s)
        if not isinstance(served, ServedListener):
            raise wrong_role(served.name, role_of(served))
        return served

    async def _first_of(self, role: Role) -> str:
        """The first model that is for it. Raises `ModelNotFound`."""
        name = next((one.name for one in await self._manifests() if one.info.role == role), None)
        if name is None:
            raise no_encoder(role)
        return name

    async def _open_any(self, plain: str, name: str, keep_alive_s: float | None) -> Served:
        wanted = adapter_name(plain)
        stamp = self._stamp(wanted) if not self._settings.models or wanted in self._allowed else None
        if wanted != base_of(wanted):
            pass  # an engine for adapters is no model
        elif stamp is None:
            self._forget(wanted)
        else:
            manifest = self._adapted.manifest(wanted, stamp)
            if manifest is not None and plain in (manifest.name, whole_name(manifest)):
                return await self._open_adapter(manifest, keep_alive_s)
            if plain == wanted:
                return await self._open_engine(plain, stamp, keep_alive_s)
        raise unknown_model(name, [one.name for one in await self._manifests()])

    async def _open_adapter(self, manifest: Manifest, keep_alive_s: float | None) -> Served:
        require_kernels(manifest, self._settings.engine.kernels)
        stamp = self._stamp(manifest.info.base)
        if stamp is None:
            raise no_base(manifest)
        base = await self._open_engine(engine_name(manifest.info.base), stamp, keep_alive_s)
        if not isinstance(base, ServedModel):
            raise wrong_role(base.name, role_of(base))
        return self._adapted.adapt(manifest, base)

    async def _open_engine(self, plain: str, stamp: _Stamp, keep_alive_s: float | None) -> Served:
        opened, known = self._opened.get(plain), self._known.get(plain)
        if opened is None or known is None or known.stamp != stamp:
            served = await self._open_once(plain, stamp)
        else:
            opened.asked = time.monotonic()
            served = opened.served
        if plain in self._known:
            self._pool.book.hold(self._known[plain].key, keep_alive_s)
        return served

    async def load(self, name: str) -> None:
        await self._open_any(_plain(name), name, None)
        await self._known[self._adapted.engine_of(name) or _plain(name)].engine.load()

    async def unload(self, name: str) -> None:
        if name != base_of(name) and name in self._known:  # `status` shows engines for adapters by their own names
            self._pool.unload(self._known[name].key)
            return
        served = await self._open_any(_plain(name), name, None)
        if served.name in self._pinned:
            raise pinned_error(served.name)
        self._pool.unload(self._known[self._adapted.engine_of(name) or served.name].key)

    # --- opening -----------------------------------------------------------------------------------------------------

    def _stamp(self, name: str) -> _Stamp | None:
        """What tells one installed version from another without reading it; None if there is none of that name."""
        try:
            stat = (self._store.root / "manifests" / f"{check_name(base_of(name))}.json").stat()
        except (InvalidRequest, FileNotFoundError):
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    async def _open_once(self, name: str, stamp: _Stamp) -> Served:
        """Callers who ask at the same time share one opening; one who leaves does not end it for the others."""
        task = self._opening.get(name)
        if task is None:
            task = asyncio.create_task(self._open(name, stamp), name=f"open-{name}")
            self._opening[name] = task
            task.add_done_callback(lambda done: self._opening_done(name, done))
        await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EdgewiseError):
            raise again(error) from error
        return task.result()

    def _opening_done(self, name: str, task: asyncio.Task[Served]) -> None:
        del self._opening[name]
        if not task.cancelled():
            task.exception()  # seen, also if everybody who asked has left

    async def _open(self, name: str, stamp: _Stamp) -> Served:
        self._pool.book.sharing = len(await self._manifests()) > 1
        read, modality = await asyncio.to_thread(read_any, self._settings, self._store, name, self._room_for(name))
        digest = read.config.model.digest
        known = self._known.get(name)
        entry = None if known is None else self._pool.book.get(known.key)
        if known is None or known.digest != digest or entry is None or entry.retired:
            self._forget(name)
            try:
                key = self._enter(name, read, modality)
            except BaseException:
                read.close()
                raise
        else:
            key = known.key
            self._close(name)
        engine: _Pooled
        served: Served
        if isinstance(read, ReadEncoder):
            engine = PooledEncoder(self._pool, key, read.config)
            served = read.served(engine, _aliases(name))
        elif isinstance(read, ReadPictures):
            engine = PooledPictures(self._pool, key, read.config)
            served = read.served(engine, _aliases(name))
        else:
            engine = PooledEngine(self._pool, key, read.config)
            served = read.served(engine, _aliases(name))
        self._known[name] = _Known(key, digest, stamp, engine)
        self._opened[name] = _Opened(read, served, time.monotonic())
        self._close_unused()
        return served

    def _enter(self, name: str, read: AnyRead, modality: Modality) -> str:
        """Make a version of a model known to the pool."""
        key = f"{name}#{next(self._numbers)}"
        keep_alive = self._keep_alive.get(base_of(name), _seconds(self._settings.pool.keep_alive_s))
        pinned = name in self._pinned
        self._pool.add(key, read.config, read.needs, pinned=pinned, keep_alive_s=keep_alive, modality=modality)
        return key

    def _room_for(self, name: str) -> Machine:
        """What it could be given at most: pinned models keep what they need."""
        kept = sum(entry.kept for entry in self._pool.book.entries() if entry.name != name)
        return replace(self._machine, available=max(0, self._pool.book.budget - kept))

    # --- closing -----------------------------------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        """It was removed or replaced: what runs may end, then it is unloaded."""
        self._adapted.forget(name)
        known = self._known.pop(name, None)
        if known is not None:
            self._pool.retire(known.key)
            self._close(name)

    def _close(self, name: str) -> None:
        """Out of memory; requests that hold it go on, and the process of a template starts again if they need it."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            opened.read.close()
            self._adapted.let_go(opened.served)

    def _unloaded(self, key: str) -> None:
        for name in [name for name, known in self._known.items() if known.key == key and name not in self._pinned]:
            self._close(name)

    def _close_unused(self) -> None:
        long_ago = time.monotonic() - FORGET_S
        for name in [name for name, opened in self._opened.items() if opened.asked < long_ago]:
            entry = self._pool.book.get(self._known[name].key)
            if name not in self._pinned and (entry is None or entry.state == "cold"):
                self._close(name)

    # --- showing -----------------------------------------------------------------------------------------------------

    async def _manifests(self) -> list[Manifest]:
        """Those of all models that may be asked."""
        return self._asked(await self._installed())

    async def _installed(self) -> list[Manifest]:
        """Those of all models. Models that have been removed meanwhile are given up here."""
        installed = await asyncio.to_thread(self._store.manifests)
        names = {manifest.name for manifest in installed}
        for name in [name for name in (*self._known, *self._adapted.names) if base_of(name) not in names]:
            if self._stamp(name) is None:
                self._forget(name)
        return installed

    def _asked(self, installed: list[Manifest]) -> list[Manifest]:
        return [
            manifest
            for manifest in installed
            if manifest.info.role in ("llm", "adapter", "diffusion", "speech-to-text", *ENCODER_ROLES)
            and (not self._settings.models or manifest.name in self._allowed)
        ]

    def _card(self, manifest: Manifest) -> ModelCard:
        opened = self._opened.get(manifest.name)
        if opened is not None and isinstance(opened.served, ServedModel) and opened.served.digest == manifest.digest:
            return card_of(opened.served)
        known = self._known.get(manifest.name)
        limits = [limit for limit in (manifest.info.context, self._settings.engine.max_context) if limit is not None]
        return ModelCard(
            name=manifest.name,
            aliases=_aliases(manifest.name),
            context=min(limits, default=None) if manifest.info.context is not None else None,
            digest=manifest.digest,
            created=manifest.installed_seconds,
            owned_by=ServedModel.owned_by,
            chat=_CHAT[manifest.info.chat_template],
            loaded=known is not None and known.engine.state == "ready",
            role=manifest.info.role,
            media=self._media.get(manifest.digest, ()),
        )

    def _status(self, entry: Entry, now: float) -> ModelStatus:
        name = entry.key.rpartition("#")[0]  # as `_enter` makes it; an entry's own name is that of the files
        known = self._known.get(name)
        engine = self._pool.engine(entry.key)
        expires = entry.expires
        return ModelStatus(
            name=name,
            digest="" if known is None or known.key != entry.key else known.digest,
            state=_STATES[entry.state] if engine is None or engine.state == "ready" else _starting(entry),
            pinned=entry.pinned,
            memory_bytes=entry.granted,
            needs_bytes=entry.needs.minimal,
            waiting=entry.waiters,
            active=entry.streams,
            expires_s=None if expires is None or expires == FOREVER else round(max(0.0, expires - now), 1),
            pid=None if engine is None else engine.pid,
        )


def _media(store: Store, name: str) -> tuple[MediaKind, ...]:
    """What prompts of a model may hold besides text; a file that is damaged is told to whoever opens it."""
    try:
        layout = read_layout(store.resolve(name))
    except EdgewiseError:
        return ()
    return () if layout is None else tuple(layout.markers)


def _starting(entry: Entry) -> ModelState:
    """A pinned engine counts as ready for the pool from its start on; shown is what is true."""
    return "loading" if entry.state == "ready" else _STATES[entry.state]


def _plain(name: str) -> str:
    """The model that a set's name stands for."""
    return member_for_role(name, "llm") if name in SETS else name


def _aliases(name: str) -> tuple[str, ...]:
    """The sets by whose names it may be asked for: labels and policies for these names hold for it too."""
    return tuple(one for one, members in SETS.items() if name in members)


def _seconds(setting: float) -> float:
    return FOREVER if setting < 0 else setting


def _keep_alive(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    return _plain(name), _seconds(float(seconds))
