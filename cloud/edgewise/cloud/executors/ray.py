"""Replicas of an engine as Ray actors: a job runs on the one with the least to do, and goes on on another if that one dies.

The job table keeps the truth. A replica that dies ends its streams with a retryable error; the next attempt carries the tokens
that the log holds, and any replica goes on at the same offset. Dead replicas are replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.executors.ray_cluster import RayCluster, check_ray
from edgewise.cloud.executors.ray_replica import Opened, Refusal, Replica
from edgewise.cloud.executors.tokens import Speed, name_here, precision_of, produced_of, request_of
from edgewise.core.errors import EdgewiseError, EngineUnavailable
from edgewise.core.log import get_logger
from edgewise.core.metrics import Metrics
from edgewise.core.patience import end_task, within
from edgewise.engine.api import EngineInfo
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import DEFAULT_FACTORY
from edgewise.engine.restart import RestartPolicy, RestartRules
from edgewise.pipeline.model import Models
from edgewise.wire.messages import Capability

log = get_logger(__name__)

_LOAD_S: Final = 600.0
_CLOSE_S: Final = 5.0
_WAIT_S: Final = 60.0
_AGAIN_S: Final = 5.0
_RULES: Final = RestartRules(first_s=0.1, longest_s=30.0)

ConfigOf = Callable[[str], Awaitable[EngineConfig]]
"""How the engine of an installed model is built; raises why it cannot be."""


@dataclass(slots=True)
class Place:
    """One replica of a model, whichever actor it is now.

    Attributes:
        actor: Ray's handle, while it can be asked.
        opened: What it told of itself.
        streams: Jobs that it works on.
        failure: Why it cannot be started at the moment.
    """

    model: str
    number: int
    actor: Any = None
    opened: Opened | None = None
    streams: int = 0
    failure: EdgewiseError | None = None


@dataclass(slots=True)
class _Group:
    """All replicas of one model."""

    places: list[Place]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    speed: Speed = field(default_factory=Speed)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def ready(self) -> list[Place]:
        return [place for place in self.places if place.actor is not None]

    def tell(self) -> None:
        """Wake whoever waits for a replica."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Until the next `tell`."""
        await self._changed.wait()

    def info(self) -> EngineInfo | None:
        return next((place.opened.info for place in self.places if place.opened is not None), None)


class RayExecutor:
    """Implements `executors.protocol.Executor`.

    Args:
        models: What is installed.
        config_of: How a model's engine is built, for one of `replicas` that share this machine.
        replicas: Engines of each model, started when it is first asked.
        most_models: So many models may have replicas.
        address: Of an outer cluster; None starts one on this machine.
        factory: See `EngineClient`.
        metrics: Where its figures are published.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(
        self,
        models: Models,
        config_of: ConfigOf,
        *,
        replicas: int,
        most_models: int = 8,
        address: str | None = None,
        factory: str = DEFAULT_FACTORY,
        rules: RestartRules = _RULES,
        metrics: Metrics | None = None,
    ) -> None:
        check_ray()
        self._models = models
        self._config_of = config_of
        self._replicas = replicas
        self._most_models = most_models
        self._factory = factory
        self._rules = rules
        self._cluster = RayCluster(replicas * most_models, address)
        # Ray's processes die with the thread that started them, and starting them blocks for seconds.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        self._groups: dict[str, _Group] = {}
        self._tickets = itertools.count(1)
        self._started: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._trouble: EngineUnavailable | None = None
        published = metrics or Metrics(process=False)
        self._deaths = published.counter("cloud_replica_deaths", "Replicas that died and were replaced.")
        self._living = published.gauge("cloud_replicas", "Replicas that can be asked.")

    def __repr__(self) -> str:
        return f"RayExecutor(models={sorted(self._groups)}, replicas={self._replicas})"

    def places(self, model: str) -> tuple[Place, ...]:
        """The replicas of a model, living or not; none before it was first asked."""
        group = self._groups.get(model)
        return () if group is None else tuple(group.places)

    def start(self) -> None:
        self._started = asyncio.create_task(self._start(), name="ray-start")

    async def _start(self) -> None:
        """Until it stands: an outer cluster may come later than this service."""
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._cluster.start)
            except EngineUnavailable as error:
                log.warning("ray_not_joined", reason=error.message)
                self._trouble = error
                self._tried.set()
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        self._trouble = None
        self._tried.set()
        log.info("ray_started", replicas=self._replicas)

    async def stop(self) -> None:
        if self._started is None:
            return
        if self._trouble is not None:
            self._started.cancel()
        await asyncio.wait({self._started})
        tasks = [task for group in self._groups.values() for task in group.tasks]
        actors = [place.actor for group in self._groups.values() for place in group.ready()]
        await end_task(*tasks)
        await asyncio.gather(*(self._close(actor) for actor in actors))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._cluster.stop)
        self._thread.shutdown()
        self._started = None

    async def _close(self, actor: Any) -> None:
        """Let an engine end by itself; Ray ends what does not."""
        closing = asyncio.ensure_future(_awaited(actor.close.remote()))
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        await end_task(closing)

    async def capabilities(self) -> Sequence[Capability]:
        """Every installed language model; those with living replicas say more."""
        found = []
        for card in await self._models.cards():
            if card.role != "llm":
                continue
            group = self._groups.get(card.name)
            info = None if group is None else group.info()
            found.append(
                Capability(
                    model=card.name,
                    digest=card.digest,
                    context=card.context,
                    numeric_class=None if info is None else info.numeric_class,
                    precision=None if info is None else precision_of(info),
                    speed=None if group is None else group.speed.decode,
                    prefill=None if group is None else group.speed.prefill,
                )
            )
        return found

    # --- one order ----------------------------------------------------------------------------------------------------------

    async def run(self, order: Order) -> AsyncGenerator[Produced, None]:
        """See `Executor.run`."""
        request = request_of(order)
        model = await name_here(self._models, order.work)
        group = await self._group(model)
        place = await self._take(group, model)
        actor, opened = place.actor, place.opened
        assert opened is not None
        place.streams += 1
        ticket, made, done = next(self._tickets), 0, False
        try:
            async for ref in actor.generate.options(num_returns="streaming").remote(ticket, request):
                chunk = await ref
                if isinstance(chunk, Refusal):
                    done = True
                    raise chunk.error()
                made += len(chunk.tokens)
                done = chunk.finish is not None
                if done and chunk.stats is not None:
                    group.speed.learn(chunk.stats, made)
                yield produced_of(chunk, opened.info)
                if done:
                    return
            raise EngineUnavailable(f"The replica {place.number} of '{model}' ended a stream without saying why.")
        except self._cluster.ray.exceptions.RayError as error:
            done = True
            raise EngineUnavailable(
                f"The replica {place.number} of '{model}' died ({type(error).__name__}); another one goes on."
            ) from error
        finally:
            place.streams -= 1
            if not done:
                actor.cancel.remote(ticket)

    async def _group(self, model: str) -> _Group:
        """The replicas of a model, which are started if it is asked for the first time."""
        started = self._started
        if started is None:
            raise EngineUnavailable("Ray has not been started.")
        tried = asyncio.ensure_future(self._tried.wait())
        await asyncio.wait({started, tried}, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        if self._trouble is not None:
            raise EngineUnavailable(self._trouble.message, retry_after_s=_AGAIN_S)
        if started.done() and (error := started.exception()) is not None:
            raise EngineUnavailable(f"Ray could not be started: {error}.") from error
        group = self._groups.get(model)
        if group is None:
            config = await self._config_of(model)
            group = self._groups.setdefault(model, _Group([Place(model, number) for number in range(self._replicas)]))
            if not group.tasks:
                if len(self._groups) > self._most_models:
                    del self._groups[model]
                    raise EngineUnavailable(
                        f"{self._most_models} models have replicas already: restart to change them."
                    )
                group.tasks = [
                    asyncio.create_task(self._keep(group, place, config), name=f"replica-{model}-{place.number}")
                    for place in group.places
                ]
        return group

    async def _take(self, group: _Group, model: str) -> Place:
        """The living replica with the least to do; waits for one."""
        limit = time.monotonic() + _WAIT_S
        while not (ready := group.ready()):
            failures = [place.failure for place in group.places if place.failure is not None]
            if len(failures) == len(group.places):
                raise failures[0]
            await within(
                group.wait(),
                max(0.0, limit - time.monotonic()),
                lambda: EngineUnavailable(
                    f"No replica of '{model}' was ready in time.{self._cluster.hint}", retry_after_s=5.0
                ),
            )
        return min(ready, key=lambda place: place.streams)

    # --- keeping replicas ---------------------------------------------------------------------------------------------------

    async def _keep(self, group: _Group, place: Place, config: EngineConfig) -> None:
        """Start a replica, wait for its end, and again."""
        policy = RestartPolicy(self._rules)
        while True:
            lived = await self._live(group, place, config)
            decision = policy.crashed(time.monotonic(), achieved=lived, hopeless=place.failure is not None)
            await asyncio.sleep(decision.pause_s)

    async def _live(self, group: _Group, place: Place, config: EngineConfig) -> bool:
        """One life of a replica; whether it could be asked at any time."""
        actor = self._cluster.actor(Replica, config, self._factory)
        told = log.bind(model=place.model, replica=place.number)
        try:
            opened = await _awaited(actor.open.remote(_LOAD_S))
            if isinstance(opened, Refusal):
                self._cluster.ray.kill(actor)
                place.failure = opened.error()
                told.warning("replica_refused", code=opened.code, why=opened.message)
                return False
            place.actor, place.opened, place.failure = actor, opened, None
            told.info("replica_ready", pid=opened.pid, engine=opened.info.pid)
            self._living.inc()
            group.tell()
            await _awaited(actor.live.remote())  # never returns
        except self._cluster.ray.exceptions.RayError as error:
            told.warning("replica_died", error=type(error).__name__)
        finally:
            lived = place.actor is actor
            if lived:
                place.actor = None
                self._living.dec()
            group.tell()
        self._deaths.inc()
        return lived


async def _awaited(ref: Any) -> Any:
    """What a method of an actor returned."""
    return await ref
