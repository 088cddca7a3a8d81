"""One service: engine processes, an API server, and the tasks that keep them. Device and cloud are this, with parts of their own.

`Service.run` reads in the order in which things happen: start, serve, drain, stop. The composition roots `edge/app.py` and
`cloud/app.py` say what it is extended with.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Protocol

import psutil
import uvicorn
from fastapi import APIRouter

from edgewise.api.app import create_app
from edgewise.api.batches.endpoints import ENDPOINTS
from edgewise.api.batches.runner import BatchRunner
from edgewise.api.deps import Access, ApiDependencies, Keeping, Limits, SoundLimits, VoiceLimits
from edgewise.core.ending import Endings
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import configure_logging, get_logger
from edgewise.core.patience import end_task
from edgewise.core.priority import priorities_by_name
from edgewise.core.privacy import Labels, labels_by_name, privacy_of
from edgewise.core.sdnotify import Notifier
from edgewise.core.settings import LoadedSettings, Settings
from edgewise.engine.events import EngineEvent
from edgewise.engine.ledger import available_memory
from edgewise.engine.machine import look
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.pool import EnginePool
from edgewise.models.store import Store
from edgewise.pipeline.held import held_bytes
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.load import load_hooks
from edgewise.pipeline.model import Models
from edgewise.pipeline.pressure import memory_reading
from edgewise.pipeline.state import open_state
from edgewise.security.fetch import FetchPolicy, named_hosts
from edgewise.security.keys import KeyStore
from edgewise.security.tls import TlsFiles, check_tls
from edgewise.serving.engines import make_engine
from edgewise.serving.installed import InstalledModels
from edgewise.serving.peers.part import make_peers
from edgewise.serving.served import with_remedy
from edgewise.serving.server import DrainingServer, listen

log = get_logger(__name__)

_FLUSH_S = 0.5  # for the error events of streams that were cut to leave the process
_ASK_S = 20.0  # systemd is asked for this much time at once while the engine loads or drains
_RENEW_S = 5.0
_DAY_S = 86_400.0
_MEDIA_SHARE = 8
"""Of what engines could book, the part that is kept for media at most."""
_MEDIA_SPARE = 40
"""Of the machine's memory, the part below which no medium is decoded: where the device counts as most pressed."""


class Part(Protocol):
    """Something that lives beside the API: begun once the models are open, ended before they are closed."""

    @property
    def routers(self) -> Sequence[APIRouter]:
        """Routes that it answers, behind the same keys and limits as all others."""

    def start(self) -> None:
        """Begin background work; called in the event loop, returns at once."""

    async def stop(self) -> None:
        """End it. Called once, after running requests have ended or were cut, also when `start` was not."""


Extend = Callable[[Settings, ApiDependencies], Iterable[Part]]
"""Makes the parts of one kind of service, one after the other: those that were made are ended where a later one cannot be. It may
set `planner` and other collaborators of the dependencies that it is given."""


def no_parts(settings: Settings, deps: ApiDependencies) -> Iterable[Part]:
    del settings, deps
    return ()


def serve(loaded: LoadedSettings, extend: Extend = no_parts, *, preload: bool = True) -> int:
    """Run the service until a stop signal; the exit code: 0 after a drained stop, 1 if it could not start, or the one that a part
    ended it with.

    Args:
        preload: Whether the configured models are loaded at start.

    Raises:
        EdgewiseError: It cannot be started as configured; nothing is running then.
    """
    settings = loaded.settings
    configure_logging(level=settings.log.level, format=settings.log.format, prompts=settings.log.prompts)
    notifier = Notifier.from_environ()
    tls = check_tls(settings.tls.cert, settings.tls.key)
    return asyncio.run(Service(settings, tls, notifier, extend, preload=preload).run())


class Service:
    """A device or a cloud engine."""

    # Made by `run`, before anything that uses them is started.
    _loop: asyncio.AbstractEventLoop
    _deps: ApiDependencies
    _pool: EnginePool
    _url: str

    def __init__(
        self, settings: Settings, tls: TlsFiles | None, notifier: Notifier, extend: Extend, *, preload: bool = True
    ) -> None:
        self._settings = settings
        self._preload = preload
        self._extend = extend
        self._tls = tls
        self._notifier = notifier
        self._stop = asyncio.Event()
        self._failure: EdgewiseError | None = None
        self._code = 0

    async def run(self) -> int:
        """Start, serve, drain, stop. What is opened on the way is closed again, however far it came."""
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        async with Endings() as endings:
            hooks = _hooks(settings)
            endings.add("the hooks", hooks.aclose)
            models = await self._make_models()
            keys = KeyStore(settings.keys_file)
            self._deps = deps = _dependencies(settings, models, keys, hooks)
            endings.add("the API keys", keys.close)
            endings.add("the database of the state", deps.state.close)
            endings.add("the store of receipts", deps.receipts.aclose)
            endings.add("the models", models.close)
            await models.open_first()
            deps.end_service = self._end
            deps.limit_engines = self._pool.limit
            total = psutil.virtual_memory().total
            deps.pressure.watch("memory", lambda: memory_reading(available_memory(), total))
            parts = []
            for part in self._make_parts():
                endings.add(f"the part {type(part).__name__}", part.stop)
                parts.append(part)
            batches = BatchRunner(deps, ENDPOINTS, concurrency=settings.batches.concurrency)
            endings.add("batches", batches.stop)
            app = create_app(deps, [router for part in parts for router in part.routers])
            server = DrainingServer(_server_config(settings, app, self._tls), on_stop=self._stop_soon)
            sockets = listen(settings.host, settings.port)
            endings.add("listening", partial(_close, sockets))
            self._url = _url(settings, sockets[0].getsockname()[1])
            if self._tls is None and not settings.loopback:
                log.warning("plain_http", host=settings.host, risk="keys and texts cross the network in the clear")
            models.start()
            batches.start()
            for part in parts:
                part.start()
            for name, work in (
                ("announce", self._announce(models)),
                ("watchdog", self._watchdog()),
                ("drain", self._drain_then_close(server)),
            ):
                task = asyncio.create_task(work, name=name)
                task.add_done_callback(_tell_fault)
                endings.add(name, partial(end_task, task))
            await server.serve(sockets=sockets)
            if self._failure is not None:
                raise self._failure
        log.info("stopped")
        return self._code if server.started else 1

    async def _make_models(self) -> InstalledModels:
        """Every installed model can be asked. None is opened and no engine is started yet."""
        settings = self._settings
        machine = await look(settings.engine.device)
        budget = settings.engine.memory_budget_bytes or _engine_budget(settings, machine.available)
        book = PoolBook(budget, wait_s=settings.pool.wait_s, retry_s=settings.pool.retry_s)
        self._pool = EnginePool(book, make_engine, on_event=self._engine_event)
        return InstalledModels(settings, Store(settings.home / "models"), machine, self._pool, preload=self._preload)

    def _make_parts(self) -> Iterator[Part]:
        yield from self._extend(self._settings, self._deps)
        yield from make_peers(self._settings, self._deps, self._pool)

    def _end(self, code: int) -> None:
        """Stop as by a signal, then end with this code: systemd starts a service again that ends with one other than 0."""
        self._code = code
        self._stop.set()

    def _stop_soon(self) -> None:
        """Called from a signal handler, which interrupts the event loop at any point."""
        self._loop.call_soon_threadsafe(self._stop.set)

    # --- tasks ------------------------------------------------------------------------------------------------------------

    async def _announce(self, models: InstalledModels) -> None:
        """Tell systemd when the models that are loaded at start can answer; end the service if one never can."""
        for name in models.first:
            waiting = asyncio.create_task(models.wait_ready(name), name="engine-ready")
            try:
                while not waiting.done():
                    self._notifier.extend_timeout(_ASK_S)
                    await asyncio.wait({waiting}, timeout=_RENEW_S)
            finally:
                waiting.cancel()  # of a service that ends before
            try:
                info = waiting.result()
            except EdgewiseError as error:
                self._failure = with_remedy(error, name)
                self._stop.set()
                return
            log.info(
                "ready",
                model=info.model,
                url=self._url,
                numeric_class=info.numeric_class,
                context=info.max_context,
                load_s=round(info.load_s, 2),
            )
        if not models.first:
            log.info("ready", url=self._url)
        self._notifier.ready(f"serving {', '.join(models.first) or 'models when they are asked'} on {self._url}")

    async def _watchdog(self) -> None:
        """The event loop lives: say so in time. The engine has a supervisor of its own."""
        interval = self._notifier.watchdog_interval_s
        while interval is not None:
            self._notifier.watchdog()
            await asyncio.sleep(interval)

    async def _drain_then_close(self, server: DrainingServer) -> None:
        """On a stop signal: refuse new requests, let running ones end, cut the rest with an error event, close."""
        try:
            await self._drain_on_stop()
        finally:
            server.close()

    async def _drain_on_stop(self) -> None:
        await self._stop.wait()
        requests = self._deps.requests
        limit = 0.0 if self._failure else self._settings.drain_s
        self._notifier.stopping("finishing running requests")
        self._notifier.extend_timeout(limit + _ASK_S)
        log.info("draining", open=requests.open, limit_s=limit)
        requests.begin_drain()
        self._deps.events.emit("draining", "The service is shutting down.", limit_s=limit)
        if not await requests.wait_idle(limit):
            log.warning("requests_cut", open=requests.open)
            requests.cut()
            await requests.wait_idle(_FLUSH_S)

    def _engine_event(self, model: str, event: EngineEvent) -> None:
        """Supervision in words: to the log, to systemd's status line and to /edgewise/v1/events."""
        if event.kind == "progress":
            self._notifier.status(f"{model}: {event.message}")
            return
        facts = {"model": model} | {
            name: value
            for name in ("epoch", "pid", "status", "request_id", "code", "delay_s")
            if (value := getattr(event, name)) is not None
        }
        level = log.warning if event.kind in ("crashed", "failed", "request_failed") else log.info
        level(f"engine_{event.kind}", message=event.message, **facts)
        self._notifier.status(f"{model}: {event.message}")
        self._deps.events.emit(f"engine_{event.kind}", event.message, **facts)


def _engine_budget(settings: Settings, available: int) -> int:
    """Bytes that all engines may book together; what media of requests take is kept for these."""
    whole = int(available * settings.engine.memory_fraction)
    media = held_bytes(settings.limits.media_bytes, settings.audio.max_seconds)
    return whole - min(media, whole // _MEDIA_SHARE)


def _dependencies(settings: Settings, models: Models, keys: KeyStore, hooks: Hooks) -> ApiDependencies:
    limits, security, engine = settings.limits, settings.security, settings.engine
    return ApiDependencies(
        models=models,
        keys=keys,
        limits=Limits(
            max_body_bytes=limits.max_body_bytes,
            max_concurrent_requests=limits.max_concurrent_requests,
            max_sequences=min(Limits().max_sequences, engine.max_running + engine.max_waiting),
            request_timeout_s=limits.request_timeout_s,
            keepalive_s=limits.keepalive_s,
            model_priority=priorities_by_name(limits.model_priority),
            media_bytes=limits.media_bytes,
            media_spare_bytes=psutil.virtual_memory().total // _MEDIA_SPARE,
            media_available=available_memory,
        ),
        sound=SoundLimits(max_bytes=settings.audio.max_bytes, max_seconds=settings.audio.max_seconds),
        voice=VoiceLimits(
            max_sessions=settings.voice.max_sessions,
            max_session_s=settings.voice.max_session_s,
            max_turn_s=settings.voice.max_turn_s,
            max_message_bytes=settings.voice.max_message_bytes,
        ),
        labels=Labels(
            default=privacy_of(settings.placement.privacy),
            models=labels_by_name(settings.placement.model_privacy),
        ),
        access=Access(
            require_key=security.require_key,
            allowed_origins=security.allowed_origins,
            allowed_hosts=security.allowed_hosts,
        ),
        version=version("edgewise"),
        log_content=settings.log.prompts,
        keep=_keeping(settings),
        state=open_state(settings.state_file),
        files_folder=settings.files_folder,
        pipelines_folder=settings.pipelines_folder,
        hooks=hooks,
        cache_folder=settings.kv_cache_dir,
        fetch=None if settings.offline else _fetching(settings),
        look=settings.vision.look,
        max_image_pixels=settings.vision.max_pixels,
        pan_and_scan=settings.vision.pan_and_scan,
        film_tokens=settings.vision.film_tokens,
        look_frames=settings.vision.look_frames,
    )


def _fetching(settings: Settings) -> FetchPolicy:
    """What requests may have fetched: as for models, public hosts over https and those that the operator has named."""
    private, plain = named_hosts(settings.sources.local_hosts)
    return FetchPolicy(private_hosts=private, http_hosts=plain, remedy="in `sources.local_hosts`")


def _keeping(settings: Settings) -> Keeping:
    responses, files, batches = settings.responses, settings.files, settings.batches
    return Keeping(
        responses_s=responses.keep_days * _DAY_S,
        responses_count=responses.keep_count,
        file_bytes=files.max_bytes,
        files_bytes=files.total_bytes,
        files_s=files.keep_days * _DAY_S,
        batch_lines=batches.max_lines,
        open_batches=batches.max_open,
        receipts_s=settings.placement.keep_days * _DAY_S,
    )


def _hooks(settings: Settings) -> Hooks:
    hooks = settings.hooks
    loaded = load_hooks(hooks.enabled, hooks.options, settings.home)
    return Hooks(loaded, on_error=hooks.on_error, timeout_s=hooks.timeout_s)


def _tell_fault(task: asyncio.Task[None]) -> None:
    """Nobody awaits these tasks before the end."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.exception("service_task_broke", error, task=task.get_name())


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _url(settings: Settings, port: int) -> str:
    return settings.model_copy(update={"port": port}).base_url


def _server_config(settings: Settings, app: object, tls: TlsFiles | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level="warning",  # what it says of its start and stop stands in our own events
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        ws_max_size=2 * settings.voice.max_message_bytes,  # a message up to here is refused in words
        lifespan="off",
        **(tls.uvicorn_options() if tls else {}),  # type: ignore[arg-type]
    )
