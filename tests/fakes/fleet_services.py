"""A named double of the fleet's services, in memory: some hundreds or thousands of devices that change while one looks.

It keeps the contracts of `edgewise.cloud.fleet.services` for tests of the console's pages; tests in a browser end to end use the
real fleet service. Devices, states and figures are made up from a seed, so two runs show the same.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from edgewise.cloud.fleet import views
from edgewise.cloud.fleet.actor import Actor
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.services import Enrolment, Fleet
from edgewise.core.errors import InvalidRequest, NotFound
from edgewise.wire.fleet import ENDED, Ack, Severity, Shadow
from tests.fakes.fleet_people import FakeAudit, FakeEnrolment, FakePeople

TENANT = "tenant-1"
SHARES: dict[views.DeviceState, int] = {
    "online": 82, "degraded": 5, "draining": 2, "offline-expected": 3, "offline": 6, "never-seen": 2,
}  # fmt: skip
HAPPENED: tuple[tuple[str, Severity, str], ...] = (
    ("model", "info", "loaded qwen3-0.6b in 3.4 s"),
    ("presence", "info", "came online after 42 s"),
    ("model", "info", "loaded smollm2-135m in 2.1 s"),
    ("clone", "critical", "another client used this device's name"),
)
REASONS = {
    "degraded": "memory is at 91 %: background work is refused",
    "draining": "finishes 2 requests, then restarts",
    "offline-expected": "shut down for the night",
    "offline": "the connection was lost",
}
SITES = ("lyon", "oslo", "porto", "graz", "turku")
MODELS = ("smollm2-135m", "qwen3-0.6b", "gemma3-1b", "whisper-base")
GAUGES = {
    "tokens_per_s": (38.0, 6.0),
    "ttft_p50_ms": (180.0, 40.0),
    "ttft_p95_ms": (420.0, 90.0),
    "itl_p95_ms": (31.0, 4.0),
    "running": (3.0, 1.0),
    "queue": (2.0, 1.5),
    "memory_used": (5.0e9, 0.6e9),
    "memory_total": (8.0e9, 0.0),
    "kv_used": (0.4, 0.1),
    "temperature_c": (61.0, 5.0),
    "power_w": (14.0, 2.0),
    "governor_level": (0.0, 0.0),
}


class FakeDevices:
    """Registry, telemetry and shadows over one dictionary of devices."""

    def __init__(self, count: int, changes: Changes) -> None:
        self._random = random.Random(7)
        self.changes = changes
        self.started = time.time()
        self.devices = {d.uid: d for d in (self._made(n) for n in range(count))}
        self.groups_: dict[str, views.GroupView] = {}
        self.shadows_: dict[tuple[str, str], views.ShadowView] = {}
        self.events_ = [self._event(n) for n in range(60)]

    def _made(self, n: int) -> views.DeviceView:
        rand, site = self._random, SITES[n % len(SITES)]
        state = rand.choices(list(SHARES), list(SHARES.values()))[0]
        held = rand.sample(MODELS, k=1 + n % 2) if state != "never-seen" else []
        gauges = {name: max(0.0, rand.gauss(mean, spread)) for name, (mean, spread) in GAUGES.items()}
        return views.DeviceView(
            uid=f"d{n:05d}x{rand.randrange(16**6):06x}",
            name=f"{site}-line{1 + n % 4}-{n:04d}",
            labels={"site": site, "line": str(1 + n % 4), "ring": rand.choice(("canary", "early", "broad"))},
            state=state,
            state_reason=REASONS.get(state, ""),
            state_at=self.started - rand.expovariate(1 / 9000),
            seen_at=None
            if state == "never-seen"
            else self.started - rand.expovariate(1 / (5 if state == "online" else 4000)),
            version="0.1.0" if n % 9 else "0.0.9",
            models=tuple(
                {
                    "name": name,
                    "digest": "sha256:" + "ab12" * 16,
                    "loaded": True,
                    "bytes": 270_000_000,
                    "state": "ready",
                }
                for name in held
            ),
            gauges=gauges if state in ("online", "degraded", "draining") else {},
            alerts=1 if state == "offline" else int(state == "degraded") * 2,
        )

    def _event(self, n: int) -> views.EventView:
        device = self._random.choice(list(self.devices.values()))
        kind, severity, text = self._random.choice(HAPPENED)
        return views.EventView(id=f"e{n:04d}", uid=device.uid, kind=kind, severity=severity, message=text, facts={},
                               at=self.started - n * 137.0)  # fmt: skip

    def matching(self, query: str) -> list[views.DeviceView]:
        if " OR " in query:
            return [device for part in query.split(" OR ") for device in self.matching(part)]
        words = [word.strip("()") for word in query.split() if word != "AND"]
        for word in words:
            if word.endswith(":"):
                raise InvalidRequest(f'The query names "{word[:-1]}" but no value; write {word}VALUE.', param="query")
        return [device for device in self.devices.values() if all(_matches(device, word) for word in words)]

    async def devices_page(self, query: str, sort: str, limit: int, after: str | None) -> views.Page[views.DeviceView]:
        found = self.matching(query)
        name, down = sort.lstrip("-").replace("seen", "seen_at"), sort.startswith("-")
        found.sort(key=lambda d: (str(getattr(d, name, "") or d.gauges.get(name, 0.0)), d.uid), reverse=down)
        start = int(after or 0)
        more = str(start + limit) if start + limit < len(found) else None
        return views.Page[views.DeviceView](items=tuple(found[start : start + limit]), total=len(found), after=more)

    async def counts(self, actor: Actor, query: str = "") -> Mapping[str, int]:
        return Counter(device.state for device in self.matching(query))

    async def device(self, actor: Actor, uid: str) -> views.DeviceDetail:
        device = self._known(uid)
        shadows = tuple(
            [await self.shadow(actor, uid, shadow) for shadow in ("config", "models", "software", "policy")]
        )
        return views.DeviceDetail(
            **device.model_dump(), notes="", created_at=self.started - 86400 * 40, shadows=shadows, keys=(),
            birth={"version": device.version, "boot": "b-1", "ops": ["infer", "restart", "logs", "ping"],
                   "hardware": {"family": "jetson-orin", "cpu": "Cortex-A78AE", "cores": 12, "memory_bytes": 64 * 1024**3},
                   "certificate_days": 71.0},
        )  # fmt: skip

    def _known(self, uid: str) -> views.DeviceView:
        if uid not in self.devices:
            raise NotFound(f"There is no device {uid} in this fleet.", param="uid")
        return self.devices[uid]

    async def uids(self, actor: Actor, query: str) -> Sequence[str]:
        return [device.uid for device in self.matching(query)]

    async def models(self, actor: Actor) -> Sequence[views.ModelUseView]:
        held = Counter(model["name"] for device in self.devices.values() for model in device.models)
        return [views.ModelUseView(name=name, digest="sha256:" + "ab12" * 16, devices=n, loaded=n - n // 9, failed=n // 40)
                for name, n in held.most_common()]  # fmt: skip

    async def edit(self, actor: Actor, uid: str, *, name: str | None = None, labels: Mapping[str, Any] | None = None,
                   notes: str | None = None) -> views.DeviceDetail:  # fmt: skip
        actor.need("operator")
        changed = {k: v for k, v in (("name", name), ("labels", labels)) if v is not None}
        self.put(self._known(uid).model_copy(update=changed))
        return await self.device(actor, uid)

    async def retire(self, actor: Actor, uid: str) -> None:
        actor.need("admin")
        del self.devices[self._known(uid).uid]
        self.changes.publish(Change(TENANT, "device", uid))

    async def groups(self, actor: Actor) -> Sequence[views.GroupView]:
        return [group.model_copy(update={"count": len(self.matching(group.query))}) for group in self.groups_.values()]

    async def save_group(self, actor: Actor, name: str, query: str) -> views.GroupView:
        actor.need("operator")
        group = views.GroupView(id=f"g-{name}", name=name, query=query, author=actor.name, created_at=time.time())
        self.groups_[group.id] = group
        return group

    async def delete_group(self, actor: Actor, group_id: str) -> None:
        del self.groups_[group_id]

    async def events(self, actor: Actor, uid: str | None = None, *, limit: int = 100,
                     after: str | None = None) -> views.Page[views.EventView]:  # fmt: skip
        return paged([e for e in self.events_ if uid in (None, e.uid)], limit, after)

    # --- telemetry ---

    async def series(self, actor: Actor, uid: str, name: str, *, since: float, until: float | None = None,
                     span_s: int | None = None) -> views.SeriesView:  # fmt: skip
        mean, spread = GAUGES[name]
        until, phase = until or time.time(), len(uid) + int(uid[1:6])
        step = max(10.0, (until - since) / 200)
        points = []
        for n in range(int((until - since) / step)):
            at = since + n * step
            wave = max(0.0, mean + spread * (math.sin(at / 290 + phase) + 0.4 * math.sin(at / 47 + phase)))
            points.append(views.PointView(at=at, mean=wave, least=max(0.0, wave - spread / 3), most=wave + spread / 3))
        return views.SeriesView(uid=uid, name=name, span_s=int(step), points=tuple(points))

    async def names(self, actor: Actor, uid: str) -> Sequence[str]:
        return sorted(GAUGES)

    # --- shadows ---

    async def shadow(self, actor: Actor, uid: str, shadow: Shadow) -> views.ShadowView:
        default = {"placement.policy": "prefer-local", "engine.max_batch": 8, "telemetry.period_s": 10}
        return self.shadows_.get((uid, shadow)) or views.ShadowView(
            uid=uid, shadow=shadow, gen=2 if shadow == "config" else 0,
            desired={**default, "engine.max_batch": 16} if shadow == "config" else None, author="ada",
            desired_at=self.started - 700 if shadow == "config" else None, seen=2, applied=1 if shadow == "config" else 0,
            state="refused" if shadow == "config" else "", reason="engine.max_batch: 16 needs 2.1 GiB more memory",
            reported=default if shadow == "config" else {}, reported_at=self.started - 690,
        )  # fmt: skip

    async def desire(self, actor: Actor, uid: str, shadow: Shadow, document: Mapping[str, Any]) -> views.ShadowView:
        actor.need("operator")
        old = await self.shadow(actor, uid, shadow)
        new = old.model_copy(update={"gen": old.gen + 1, "desired": dict(document), "author": actor.name, "state": "pending",
                                     "desired_at": time.time(), "seen": old.gen + 1, "reason": ""})  # fmt: skip
        self.shadows_[uid, shadow] = new
        self.changes.publish(Change(TENANT, "shadow", uid))
        return new

    async def desire_all(
        self, actor: Actor, uids: Sequence[str], shadow: Shadow, document: Mapping[str, Any]
    ) -> Mapping[str, int]:
        return {uid: (await self.desire(actor, uid, shadow, document)).gen for uid in uids}

    def apply(self, uid: str, shadow: Shadow) -> None:
        """What the device would do: the desired document is in force."""
        new = self.shadows_[uid, shadow]
        self.shadows_[uid, shadow] = new.model_copy(
            update={"applied": new.gen, "state": "applied", "reported": new.desired, "reported_at": time.time()}
        )
        self.changes.publish(Change(TENANT, "shadow", uid))

    # --- what changes by itself ---

    def put(self, device: views.DeviceView) -> None:
        self.devices[device.uid] = device
        self.changes.publish(Change(TENANT, "device", device.uid))

    def set_state(self, uid: str, state: views.DeviceState, reason: str = "") -> None:
        self.put(self.devices[uid].model_copy(update={"state": state, "state_reason": reason, "state_at": time.time()}))

    def heat(self, uid: str, reason: str) -> None:
        """Its governor goes from normal to hot, and says why."""
        device = self.devices[uid]
        facts = {"level": "hot", "before": "normal", "reason": reason}
        event = views.EventView(id=f"e-hot-{uid}", uid=uid, kind="governor_slows", severity="warning",
                                message=f"The device is hot, was normal: {reason}.", facts=facts, at=time.time())  # fmt: skip
        self.events_.insert(0, event)
        self.put(device.model_copy(update={"gauges": {**device.gauges, "governor_level": 2.0}}))

    def drift(self, share: float = 0.1) -> None:
        """A tick of telemetry of some devices."""
        for device in self._random.sample(list(self.devices.values()), k=max(1, int(len(self.devices) * share))):
            if device.gauges:
                gauges = {k: max(0.0, v + self._random.gauss(0, GAUGES[k][1] / 3)) for k, v in device.gauges.items()}
                self.devices[device.uid] = device.model_copy(update={"gauges": gauges, "seen_at": time.time()})
                self.changes.publish(Change(TENANT, "telemetry", device.uid))


def _matches(device: views.DeviceView, word: str) -> bool:
    key, colon, value = word.partition(":")
    if not colon:
        return word.lower() in device.name or word in device.uid
    if key == "state":
        return device.state == value
    if key == "model":
        return any(model["name"].startswith(value) for model in device.models)
    if key == "uid":
        return device.uid == value
    return str(device.labels.get(key, "")) == value


def paged(items: Sequence[Any], limit: int, after: str | None) -> views.Page[Any]:
    start = int(after or 0)
    more = str(start + limit) if start + limit < len(items) else None
    return views.Page[Any](items=tuple(items[start : start + limit]), total=len(items), after=more)


class FakeRegistry:
    """The registry's face of `FakeDevices` (its `devices` is a method there)."""

    def __init__(self, fake: FakeDevices) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)

    async def devices(self, actor: Actor, query: str = "", *, sort: str = "name", limit: int = 50,
                      after: str | None = None) -> views.Page[views.DeviceView]:  # fmt: skip
        return await self._fake.devices_page(query, sort, limit, after)


class FakeCommands:
    """Commands end at once, except those that are asked to wait; `infer` streams words."""

    def __init__(self, fake: FakeDevices) -> None:
        self._fake = fake
        self._numbers = itertools.count(1)
        self.commands_: dict[str, views.CommandView] = {}

    async def send(self, actor: Actor, uids: Sequence[str], op: str, args: Mapping[str, Any] | None = None, *,
                   key: str | None = None, ttl_s: float | None = None, total_s: float | None = None,
                   step_s: float | None = None) -> Sequence[views.CommandView]:  # fmt: skip
        actor.need("operator")
        batch = f"b{next(self._numbers):025d}" if len(uids) > 1 else None
        return [self._sent(actor, uid, op, dict(args or {}), batch) for uid in uids]

    def _sent(self, actor: Actor, uid: str, op: str, args: dict[str, Any], batch: str | None) -> views.CommandView:
        now, id_ = time.time(), f"c{next(self._numbers):025d}"
        there = self._fake.devices[uid].state in ("online", "degraded")
        states: list[Any] = (
            ["queued", "sent", "accepted", "running", "succeeded"] if there and op != "infer" else ["queued"]
        )
        steps = tuple(views.StepView(state=state, at=now + n * 0.4) for n, state in enumerate(states))
        self.commands_[id_] = views.CommandView(
            id=id_, uid=uid, batch_id=batch, op=op, args=args, author=actor.name, state=states[-1], created_at=now,
            sent_at=now if there else None, changed_at=now, steps=steps,
            result={"restarted_in_s": 3.1} if op == "restart" and there else None,
        )  # fmt: skip
        self._fake.changes.publish(Change(TENANT, "command", id_))
        return self.commands_[id_]

    def change(self, id_: str, **update: Any) -> views.CommandView:
        command = self.commands_[id_]
        steps = (*command.steps, views.StepView(state=update.get("state", command.state), at=time.time()))
        self.commands_[id_] = command.model_copy(update={**update, "changed_at": time.time(), "steps": steps})
        self._fake.changes.publish(Change(TENANT, "command", id_))
        return self.commands_[id_]

    async def cancel(self, actor: Actor, command_id: str) -> views.CommandView:
        command = await self.command(actor, command_id)
        return command if command.state in ENDED else self.change(command_id, state="cancelled")

    async def command(self, actor: Actor, command_id: str) -> views.CommandView:
        if command_id not in self.commands_:
            raise NotFound(f"There is no command {command_id}.")
        return self.commands_[command_id]

    async def commands(self, actor: Actor, *, uid: str | None = None, batch_id: str | None = None, state: str | None = None,
                       limit: int = 50, after: str | None = None) -> views.Page[views.CommandView]:  # fmt: skip
        found = [c for c in reversed(self.commands_.values())
                 if uid in (None, c.uid) and batch_id in (None, c.batch_id) and state in (None, c.state)]  # fmt: skip
        return paged(found, limit, after)

    async def stream(self, actor: Actor, command_id: str) -> AsyncIterator[Ack]:
        prompt = self.commands_[command_id].args["messages"][-1]["content"]
        self.change(command_id, state="running")
        yield Ack(state="running")
        for n, word in enumerate(f"You said: {prompt} Here all is well.".split(" ")):
            await asyncio.sleep(0.02)
            yield Ack(state="running", offset=n, text=word + " ")
        result = {
            "usage": {"completion_tokens": 9},
            "edgewise": {"stages": [{"stage": "generate", "where": "local", "ttft_ms": 180.2, "tokens_per_s": 41.5}]},
        }
        self.change(command_id, state="succeeded", result=result)
        yield Ack(state="succeeded", result=result)

    async def log(self, actor: Actor, command_id: str) -> Sequence[str]:
        return [f"2026-11-30T02:0{n}:00Z edgewise.engine INFO step {n}" for n in range(8)]


class FakeRollouts:
    def __init__(self, fake: FakeDevices) -> None:
        self._fake = fake
        self.rollouts_: dict[str, views.RolloutView] = {}

    async def create(self, actor: Actor, name: str, shadow: Shadow, document: Mapping[str, Any], query: str,
                     plan: Mapping[str, Any], *, start: bool = False) -> views.RolloutView:  # fmt: skip
        actor.need("operator")
        now, uids = time.time(), await self._fake.uids(actor, query)
        devices = tuple(
            views.RolloutDeviceView(uid=uid, stage=int(n >= len(uids) * 0.1), gen=3, at=now, reason="" if n else
                                    "agreement 0.41 is below 0.90", state="failed" if not n else "waiting",
                                    checks={"agreement": 0.41 if not n else 0.97, "tokens_per_s": 38.2})
            for n, uid in enumerate(uids[:40])
        )  # fmt: skip
        view = views.RolloutView(
            id=f"r{len(self.rollouts_) + 1:025d}", name=name, shadow=shadow, document=dict(document), query=query,
            plan=dict(plan), state="running" if start else "draft", stage=0, stage_at=now if start else None, reason="",
            author=actor.name, approved_by="", created_at=now, changed_at=now,
            counts={"failed": 1, "waiting": max(0, len(uids) - 1)}, devices=devices,
        )  # fmt: skip
        self.rollouts_[view.id] = view
        self._fake.changes.publish(Change(TENANT, "rollout", view.id))
        return view

    async def act(self, actor: Actor, rollout_id: str, what: str) -> views.RolloutView:
        actor.need("operator")
        states = {"start": "running", "approve": "running", "pause": "paused", "resume": "running", "cancel": "cancelled",
                  "roll-back": "rolling-back"}  # fmt: skip
        view = self.rollouts_[rollout_id].model_copy(update={"state": states[what], "changed_at": time.time()})
        self.rollouts_[rollout_id] = view
        self._fake.changes.publish(Change(TENANT, "rollout", rollout_id))
        return view

    async def rollout(self, actor: Actor, rollout_id: str) -> views.RolloutView:
        if rollout_id not in self.rollouts_:
            raise NotFound(f"There is no rollout {rollout_id}.")
        return self.rollouts_[rollout_id]

    async def rollouts(
        self, actor: Actor, *, limit: int = 50, after: str | None = None
    ) -> views.Page[views.RolloutView]:
        return paged(list(reversed(self.rollouts_.values())), limit, after)


class FakeAlerts:
    def __init__(self, fake: FakeDevices) -> None:
        self._fake = fake
        rule = views.AlertRuleView(id="rule-1", name="offline", query="", condition={"kind": "offline", "for_s": 60},
                                   severity="critical", deliver=(), enabled=True, silenced_until=None)  # fmt: skip
        memory = {"kind": "gauge", "value": "memory_used", "of": "memory_total", "above": 0.9, "for_s": 60}
        self.rules_ = {rule.id: rule, "rule-2": rule.model_copy(
            update={"id": "rule-2", "name": "memory 90 %", "severity": "warning", "condition": memory})}  # fmt: skip
        self.alerts_ = {a.id: a for a in map(self._alert, (d for d in fake.devices.values() if d.alerts))}

    def _alert(self, device: views.DeviceView) -> views.AlertView:
        rule = self.rules_["rule-1" if device.state == "offline" else "rule-2"]
        text = "no contact since it was lost" if device.state == "offline" else "memory is at 91 %"
        return views.AlertView(
            id=f"a-{device.uid}", rule_id=rule.id, rule=rule.name, uid=device.uid, severity=rule.severity, message=text,
            value=0.91, raised_at=device.state_at, cleared_at=None, acknowledged_by="",
        )  # fmt: skip

    async def alerts(self, actor: Actor, *, open_only: bool = True, uid: str | None = None, limit: int = 100,
                     after: str | None = None) -> views.Page[views.AlertView]:  # fmt: skip
        return paged([a for a in self.alerts_.values() if uid in (None, a.uid)], limit, after)

    async def acknowledge(self, actor: Actor, alert_id: str) -> views.AlertView:
        actor.need("operator")
        self.alerts_[alert_id] = self.alerts_[alert_id].model_copy(update={"acknowledged_by": actor.name})
        self._fake.changes.publish(Change(TENANT, "alert", alert_id))
        return self.alerts_[alert_id]

    async def rules(self, actor: Actor) -> Sequence[views.AlertRuleView]:
        return list(self.rules_.values())

    async def save_rule(self, actor: Actor, rule: Mapping[str, Any]) -> views.AlertRuleView:
        actor.need("operator")
        id_ = rule.get("id") or f"rule-{len(self.rules_) + 1}"
        self.rules_[id_] = views.AlertRuleView(
            **{"silenced_until": None, "deliver": (), "enabled": True, **rule, "id": id_}
        )
        return self.rules_[id_]

    async def delete_rule(self, actor: Actor, rule_id: str) -> None:
        del self.rules_[rule_id]

    async def silence(self, actor: Actor, rule_id: str, seconds: float) -> views.AlertRuleView:
        actor.need("operator")
        until = time.time() + seconds if seconds else None
        self.rules_[rule_id] = self.rules_[rule_id].model_copy(update={"silenced_until": until})
        return self.rules_[rule_id]


class FakeFleet:
    """The whole double: `fleet` is what the console takes, `devices` and the rest what a test turns."""

    def __init__(self, count: int) -> None:
        changes = Changes()
        self.devices = FakeDevices(count, changes)
        self.commands = FakeCommands(self.devices)
        self.rollouts = FakeRollouts(self.devices)
        self.alerts = FakeAlerts(self.devices)
        self.people = FakePeople(TENANT)
        self.enrolment = FakeEnrolment(TENANT, changes)
        self.fleet = Fleet(
            registry=FakeRegistry(self.devices),
            telemetry=self.devices,
            shadows=self.devices,
            commands=self.commands,
            rollouts=self.rollouts,
            alerts=self.alerts,
            people=self.people,
            enrolment=cast(Enrolment, self.enrolment),  # without what devices call
            audit=FakeAudit(),
            changes=changes,
        )

    async def live(self, period_s: float = 1.0) -> None:
        """Telemetry for as long as it runs."""
        while True:
            self.devices.drift()
            await asyncio.sleep(period_s)
