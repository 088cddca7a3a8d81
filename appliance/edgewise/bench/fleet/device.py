"""A simulated device: everything it says crosses a real broker, everything it computes is made up and the same each time.

It keeps the rules of docs/wire.md as an agent does: session counter, birth, sync, an inbox in which each command takes effect
once, an outbox whose rows leave on the fleet's own acknowledgement only. What an agent keeps on disk it keeps in memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from edgewise.core.errors import BadMessage, EdgewiseError
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, Sealer, decode, encode, new_ulid
from edgewise.wire.fleet import (
    Ack,
    Birth,
    Command,
    CommandState,
    Control,
    Desired,
    Event,
    HostLive,
    Live,
    ModelState,
    Received,
    Reported,
    Sample,
    Sync,
    Telemetry,
    TrialArgs,
    TrialResult,
)
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Subscription, Will

OPS = ("ping", "infer", "restart", "drain", "model.trial", "model.load", "model.unload", "logs", "diagnose")
WINDOW = 32
"""Rows that may be unacknowledged; the others wait for their turn, so that a slow fleet is not sent ever more."""
_RESEND_S = 10.0
_RECONNECT_S = 0.5


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What is unusual about a device.

    Attributes:
        slow_s: Time before each answer to a command.
        clock_s: How far its wall clock is off.
        duplicates: Everything is sent twice.
        garbage: Names of models that answer garbage here (`model.trial` says so); an asterisk ends a beginning.
    """

    slow_s: float = 0.0
    clock_s: float = 0.0
    duplicates: bool = False
    garbage: tuple[str, ...] = ("bad*",)

    def is_garbage(self, model: str) -> bool:
        """Whether a model answers garbage."""
        return any(model == name or (name[-1] == "*" and model.startswith(name[:-1])) for name in self.garbage)


@dataclass(slots=True)
class Tally:
    """What a device did, to be compared with what the fleet believes."""

    samples: int = 0
    acks: int = 0
    commands: dict[str, CommandState] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    connects: int = 0


class SimulatedDevice:
    """`start` it, break it with `cut`, `stop` it.

    Args:
        period_s: Between two samples of telemetry; 0 sends none.
        seed: Of its figures and pauses.
        ep: Number of the session before its first, as its disk would have it.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        behaviour: Behaviour | None = None,
        models: Mapping[str, str] | None = None,
        period_s: float = 10.0,
        seed: int = 0,
        ep: int = 0,
    ) -> None:
        self.uid = broker.uid
        self.tally = Tally()
        self._broker = broker
        self._behaviour = behaviour or Behaviour()
        self._models = dict(models or {"starter": "sha256:" + "0" * 64})
        self._period_s = period_s
        self._rng = random.Random(f"{self.uid}/{seed}")  # noqa: S311 - figures, no secrets
        self._sealer = Sealer(ep)
        self._ep = ep
        self._boot, self._started = f"boot-{self.uid}", new_ulid()
        self._outbox: dict[str, tuple[str, Callable[[float], BaseModel], str | None, float]] = {}
        self._sent: dict[str, float] = {}  # when each row was sent that is unacknowledged
        self._inbox: dict[str, Ack] = {}
        self._gens: dict[str, int] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._connection: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"SimulatedDevice({self.uid}, connected={self.connected}, waiting={len(self._outbox)})"

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.ended.done()

    @property
    def waiting(self) -> int:
        """Rows that the fleet has not acknowledged."""
        return len(self._outbox)

    @property
    def models(self) -> Mapping[str, str]:
        """Digests by name."""
        return self._models

    def start(self) -> None:
        """Connect, and stay connected."""
        self._tasks = [
            asyncio.create_task(self._keep(), name=f"sim-{self.uid}"),
            asyncio.create_task(self._measure(), name=f"sim-tel-{self.uid}"),
        ]

    async def stop(self, reason: str = "stopped") -> None:
        """Say goodbye and end."""
        for task in (*self._tasks, *self._running.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._running.values(), return_exceptions=True)
        if self._connection is not None and self.connected:
            live = self._seal(Live(state="offline", reason=reason))
            await self._connection.publish(topics.live(self.uid), encode(live), retain=True)
            await self._connection.close()

    def kill(self) -> None:
        """End without a word: the broker publishes the will."""
        for task in (*self._tasks, *self._running.values()):
            task.cancel()
        self.cut()

    def cut(self) -> None:
        """Lose the connection without a word; it is made again unless the device was killed."""
        if self._connection is not None:
            self._connection.end("cut")

    # --- the link --------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._ep += 1
            try:
                await self._live()
            except EdgewiseError:
                await asyncio.sleep(self._rng.uniform(0, _RECONNECT_S))
            await asyncio.sleep(self._rng.uniform(0, _RECONNECT_S))

    async def _live(self) -> None:
        """One connection, from birth to end."""
        self._sealer = Sealer(self._ep)
        will = Will(topics.live(self.uid), encode(self._seal(Live(state="offline", reason="the link broke"))))
        connection = Connection(self._broker, self._arrived, will=will)
        try:
            await connection.open()
            await connection.subscribe([Subscription(topics.down(self.uid)), Subscription(topics.HOST_LIVE)])
            self._connection = connection
            self._sent.clear()  # what was on its way may be lost
            self.tally.connects += 1
            await connection.publish(topics.birth(self.uid), encode(self._seal(self._birth())), retain=True)
            await connection.publish(topics.live(self.uid), encode(self._seal(Live(state="online"))), retain=True)
            await connection.publish(topics.sync(self.uid), encode(self._seal(self._sync())))
            for shadow in self._gens:
                self._report(shadow)
            while not connection.ended.done():
                self._resend()
                await asyncio.wait({connection.ended}, timeout=_RESEND_S)
        finally:
            await connection.close()

    def _seal(self, body: BaseModel, **fields: Any) -> Envelope:
        envelope = self._sealer.seal(body, **fields)
        return envelope.model_copy(update={"ts": (envelope.ts or 0.0) + self._behaviour.clock_s})

    def _birth(self) -> Birth:
        models = tuple(
            ModelState(name=name, digest=digest, role="llm", loaded=True) for name, digest in self._models.items()
        )
        hardware = {"family": "simulated", "cores": 4, "memory_bytes": 8 * 2**30}
        return Birth(version="0.1.0", boot=self._boot, started=self._started, ops=OPS, hardware=hardware, models=models)

    def _sync(self) -> Sync:
        results = sum(re is not None for _, _, re, _ in self._outbox.values())
        outbox = {"result": results, "telemetry": len(self._outbox) - results}
        return Sync(gens=dict(self._gens), open=tuple(self._running), outbox=outbox)  # type: ignore[arg-type]

    # --- up --------------------------------------------------------------------------------------------------------------

    def _put(self, topic: str, make: Callable[[float], BaseModel], *, re: str | None = None) -> None:
        """Into the outbox and on its way; `make` says it with its age in milliseconds."""
        self._outbox[new_ulid()] = (topic, make, re, self._loop.time())
        self._fill()

    def _resend(self) -> None:
        """What has been unacknowledged for long, and what had to wait."""
        late = self._loop.time() - _RESEND_S
        for id in [id for id, at in self._sent.items() if at <= late]:
            self._send(id)
        self._fill()

    def _fill(self) -> None:
        """The oldest rows, as far as the window has room."""
        for id in list(self._outbox) if len(self._sent) < WINDOW else ():
            if len(self._sent) >= WINDOW:
                return
            if id not in self._sent:
                self._send(id)

    def _send(self, id: str) -> None:
        if not self.connected or self._connection is None:
            return
        topic, make, re, made_at = self._outbox[id]
        self._sent[id] = self._loop.time()
        envelope = self._seal(make(1000 * (self._loop.time() - made_at)), re=re).model_copy(update={"id": id})
        for _ in range(2 if self._behaviour.duplicates else 1):
            try:
                self._connection.publish(topic, encode(envelope))
            except EdgewiseError:
                return  # the link is over: it stays in the outbox

    def _say(self, topic: str, body: BaseModel, *, re: str | None = None) -> None:
        """Once, without the outbox: pieces of an answer, which its result has all of, and what is said anew at each connect."""
        if not self.connected or self._connection is None:
            return
        try:
            self._connection.publish(topic, encode(self._seal(body, re=re)))
        except EdgewiseError:
            return  # the link is over

    async def _measure(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, self._period_s or 1.0))
        while self._period_s:
            self.sample()
            await asyncio.sleep(self._period_s or 1.0)

    def sample(self) -> None:
        """Send one sample of telemetry."""
        self.tally.samples += 1
        values = {
            "tokens_per_s": round(self._rng.uniform(20, 40), 2),
            "ttft_p95_ms": round(self._rng.uniform(80, 120), 1),
            "temperature_c": round(self._rng.uniform(45, 60), 1),
            "memory_used": 4.0 * 2**30,
            "memory_total": 8.0 * 2**30,
            "requests_ok": float(self._rng.randint(0, 20)),
            "ready": 1.0,
        }
        sample = Sample(values=values)
        self._put(
            topics.telemetry(self.uid, "main"), lambda age: Telemetry(group="main", age_ms=int(age), samples=(sample,))
        )

    def quiet(self) -> None:
        """Take no more samples."""
        self._period_s = 0

    def happened(self, kind: str, message: str) -> None:
        """Send an event."""
        self._put(topics.event(self.uid, "info"), lambda age: Event(kind=kind, message=message, age_ms=int(age)))

    def _ack(self, id: str, ack: Ack) -> None:
        self.tally.acks += 1
        self.tally.commands[id] = ack.state
        self._inbox[id] = ack
        self._put(topics.ack(self.uid, id), lambda _: ack, re=id)

    # --- down ------------------------------------------------------------------------------------------------------------

    def _arrived(self, incoming: Incoming) -> None:
        if incoming.topic == topics.HOST_LIVE:
            self._host(incoming)
            return
        try:
            kind, *rest = topics.parse(incoming.topic).rest
            envelope = decode(incoming.payload)
            if kind == "des":
                self._desired(rest[0], envelope.read(Desired))
            elif kind == "cmd" and not incoming.retain:
                self._command(envelope, envelope.read(Command))
            elif kind == "ctl" and rest[0] == "outbox":
                for id in envelope.read(Received).ids:
                    self._outbox.pop(id, None)
                    self._sent.pop(id, None)
                self._fill()
            elif kind == "ctl":
                self._control(rest[0], envelope.read(Control))
        except BadMessage:
            self.happened("bad_message", incoming.topic)

    def _host(self, incoming: Incoming) -> None:
        """A fleet that comes may have missed what was said while it was away. One that was there already (the broker's retained
        word says so) has not."""
        if not incoming.retain and decode(incoming.payload).read(HostLive).state == "online":
            self._say(topics.sync(self.uid), self._sync())
            for shadow in self._gens:
                self._report(shadow)
            self._sent.clear()
            self._fill()

    def _desired(self, shadow: str, desired: Desired) -> None:
        if desired.gen > self._gens.get(shadow, 0):
            self._gens[shadow] = desired.gen
            self._documents[shadow] = desired.document
            self.tally.applied[shadow] = self.tally.applied.get(shadow, 0) + 1
            for model in desired.document.get("models", []) if shadow == "models" else ():
                if model.get("load", True):
                    self._models[model["name"]] = model.get("digest") or "sha256:" + "1" * 64
                else:
                    self._models.pop(model["name"], None)
        self._report(shadow)

    def _report(self, shadow: str) -> None:
        """What is in force now. No outbox keeps it: an old report that came after a newer one would be believed."""
        gen, document = self._gens[shadow], self._documents[shadow]
        if shadow == "models":
            document = {"models": [{"name": name, "digest": digest} for name, digest in self._models.items()]}
        reported = Reported(seen=gen, applied=gen, state="applied", document=document)
        self._say(topics.reported(self.uid, shadow), reported)

    def _command(self, envelope: Envelope, command: Command) -> None:
        id = envelope.id
        if id in self._inbox:
            if not any(re == id for _, _, re, _ in self._outbox.values()):  # else the answer is on its way
                self._put(topics.ack(self.uid, id), lambda _, ack=self._inbox[id]: ack, re=id)  # type: ignore[misc]
            return
        if command.op not in OPS:
            self._ack(id, Ack(state="rejected", code="unknown_op", reason=f"no such command: {command.op}"))
            return
        self._ack(id, Ack(state="accepted"))
        self._running[id] = asyncio.create_task(self._carry_out(id, command), name=f"sim-cmd-{id}")

    async def _carry_out(self, id: str, command: Command) -> None:
        try:
            await asyncio.sleep(self._behaviour.slow_s)
            self.tally.effects[id] = self.tally.effects.get(id, 0) + 1
            result = self._work(id, command)
            self._ack(id, Ack(state="succeeded", result=result))
        finally:
            self._running.pop(id, None)

    def _work(self, id: str, command: Command) -> dict[str, Any]:
        if command.op == "infer":
            pieces = ["Paris", " is", " the", " capital", "."]
            if self._behaviour.is_garbage(str(command.args.get("model", ""))):
                pieces = ["\x10", "zq", "#"]
            for offset, text in enumerate(pieces):
                self._say(topics.ack(self.uid, id), Ack(state="running", offset=offset, text=text), re=id)
            return {"choices": [{"text": "".join(pieces)}], "usage": {"completion_tokens": len(pieces)}}
        if command.op == "model.trial":
            return self._trial(TrialArgs.model_validate(command.args)).model_dump(exclude_none=True)
        return {}

    def _trial(self, args: TrialArgs) -> TrialResult:
        garbage = self._behaviour.is_garbage(args.candidate)
        return TrialResult(
            prompts=args.prompts,
            own=True,
            agreement=0.03 if garbage else 0.97,
            tokens_per_s=30.0,
            baseline_tokens_per_s=31.0,
        )

    def _control(self, id: str, control: Control) -> None:
        if control.do == "cancel" and (task := self._running.get(id)) is not None:
            task.cancel()
            self._ack(id, Ack(state="cancelled", reason="cancelled by the fleet"))
