"""Carries rollouts out: learns the facts, enters what `machine.py` decides, then asks for it.

What is asked for can be asked twice: commands have a key of the rollout, and a document that the rollout has desired already is
recognized by its author. So the service may be killed between any two lines and goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.actor import Actor, service
from edgewise.cloud.fleet.audit import record
from edgewise.cloud.fleet.changes import Change, Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.db.tables import Rollout, RolloutDevice, ShadowRow
from edgewise.cloud.fleet.rollouts import machine
from edgewise.cloud.fleet.rollouts.facts import PROBE, TRY, author, command_key, gather, wanted_models
from edgewise.cloud.fleet.rollouts.machine import Facts, Member, Move
from edgewise.cloud.fleet.rollouts.merge import merged
from edgewise.cloud.fleet.rollouts.plan import RolloutPlan, read_plan
from edgewise.cloud.fleet.services import Commands, Registry, Shadows
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.patience import end_task
from edgewise.core.recurring import Guard, recur
from edgewise.wire.fleet import TrialArgs

_ACTIVE = ("running", "rolling-back", "succeeded")  # what succeeded goes on for devices that come late
_TRIAL_S, _PROBE_S = 3600.0, 300.0


@dataclass(slots=True)
class _Look:
    """A rollout as it was read."""

    rollout: Rollout
    plan: RolloutPlan
    members: dict[str, RolloutDevice]
    facts: Mapping[str, Facts]


class RolloutRunner:
    """One task. Only one fleet service of a database may run it.

    Args:
        period_s: Between two looks.
    """

    def __init__(
        self,
        db: FleetDatabase,
        registry: Registry,
        shadows: Shadows,
        commands: Commands,
        changes: Changes,
        *,
        clock: Clock | None = None,
        period_s: float = 1.0,
    ) -> None:
        self._db, self._registry, self._shadows, self._commands = db, registry, shadows, commands
        self._changes = changes
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._guard = Guard()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = recur(self.tick, every_s=self._period_s, stuck="rollouts_stuck")
        self._task = asyncio.create_task(work, name="rollouts")

    async def stop(self) -> None:
        await end_task(self._task)

    async def tick(self) -> None:
        """Look at every rollout that goes on, once; one that is stuck keeps no other from going on."""
        for rollout_id, tenant in await self._db.read(_active):
            actor = service(tenant, author(rollout_id))
            await self._guard.run(partial(self._step, rollout_id, actor), stuck="rollout_stuck", rollout=rollout_id)

    async def _step(self, rollout_id: str, actor: Actor) -> None:
        group = set(await self._registry.uids(actor, await self._db.read(lambda session: _query(session, rollout_id))))
        await self._enrol(rollout_id, actor, group)
        look = await self._db.read(lambda session: _look(session, rollout_id, group))
        now = self._clock.time()
        moves = dict(_moves(look, now))
        if moves:
            await self._db.write(lambda session: _enter(session, look, moves, now))
        await self._act(look, moves, actor)
        if await self._db.write(lambda session: _conclude(session, rollout_id, actor, now)) or moves:
            self._changes.publish(Change(actor.tenant, "rollout", rollout_id))

    async def _enrol(self, rollout_id: str, actor: Actor, group: set[str]) -> None:
        """Devices that the query matches now and did not before join; shares are counted anew."""
        plan, known = await self._db.read(lambda session: _known(session, rollout_id))
        if group <= known or plan is None:
            return
        everybody = machine.order(rollout_id, known | group)
        matches = {
            index: set(await self._registry.uids(actor, stage.query))
            for index, stage in enumerate(plan.stages)
            if stage.query is not None
        }
        stages, now = machine.assign(plan, everybody, matches), self._clock.time()

        def add(session: Session) -> None:
            for uid in group - known:
                session.add(RolloutDevice(rollout_id=rollout_id, uid=uid, stage=stages[uid], at=now, checks={}))

        await self._db.write(add)

    # --- what is asked for -----------------------------------------------------------------------------------------------

    async def _act(self, look: _Look, moves: Mapping[str, Move], actor: Actor) -> None:
        deeds: dict[str, list[str]] = {}
        for uid, move in moves.items():
            deeds.setdefault(move.do, []).append(uid)
        rollout = look.rollout
        if trying := deeds.get("try"):
            args = _trial_args(rollout.document, look.plan)
            key = command_key(rollout.id, TRY)
            await self._commands.send(actor, trying, "model.trial", args, key=key, ttl_s=_TRIAL_S, total_s=_TRIAL_S)
        if probing := deeds.get("probe"):
            key = command_key(rollout.id, PROBE)
            args = _probe_args(rollout)
            await self._commands.send(actor, probing, "infer", args, key=key, ttl_s=_PROBE_S, total_s=_PROBE_S)
        if changing := deeds.get("change"):
            await self._change(look, changing, actor)
        if restoring := deeds.get("restore"):
            documents = {uid: _restored(rollout, look.members[uid].before) for uid in restoring}
            await self._desire(rollout, documents, actor)

    async def _change(self, look: _Look, uids: Sequence[str], actor: Actor) -> None:
        rollout = look.rollout
        gens = {
            uid: look.facts[uid].gen for uid in uids if look.facts[uid].ours
        }  # desired before the service was killed
        documents = {uid: _changed(look, uid) for uid in uids if uid not in gens}
        gens |= await self._desire(rollout, documents, actor)

        def enter(session: Session) -> None:
            for uid, gen in gens.items():
                session.get_one(RolloutDevice, (rollout.id, uid)).gen = gen

        await self._db.write(enter)

    async def _desire(self, rollout: Rollout, documents: Mapping[str, dict[str, Any]], actor: Actor) -> dict[str, int]:
        """A document for each device, devices with equal ones together; the generations."""
        together: dict[str, list[str]] = {}
        for uid, document in documents.items():
            together.setdefault(json.dumps(document, sort_keys=True), []).append(uid)
        gens: dict[str, int] = {}
        for text, uids in together.items():
            gens |= await self._shadows.desire_all(actor, uids, rollout.shadow, json.loads(text))  # type: ignore[arg-type]
        return gens


# --- transactions -----------------------------------------------------------------------------------------------------------


def _active(session: Session) -> list[tuple[str, str]]:
    rows = session.execute(select(Rollout.id, Rollout.tenant_id, Rollout.state).where(Rollout.state.in_(_ACTIVE)))
    return [(row.id, row.tenant_id) for row in rows if row.state != "succeeded" or _late(session, row.id)]


def _late(session: Session, rollout_id: str) -> bool:
    settled = [state for state in machine.SETTLED if state != "missing"]
    statement = select(RolloutDevice.uid).where(
        RolloutDevice.rollout_id == rollout_id, RolloutDevice.state.not_in(settled)
    )
    return session.execute(statement.limit(1)).first() is not None


def _query(session: Session, rollout_id: str) -> str:
    return session.get_one(Rollout, rollout_id).query


def _known(session: Session, rollout_id: str) -> tuple[RolloutPlan | None, set[str]]:
    """The plan while devices may still join, and those that are in it."""
    rollout = session.get_one(Rollout, rollout_id)
    uids = set(session.scalars(select(RolloutDevice.uid).where(RolloutDevice.rollout_id == rollout_id)))
    return (read_plan(rollout.plan) if rollout.state == "running" else None), uids


def _look(session: Session, rollout_id: str, group: set[str]) -> _Look:
    rollout = session.get_one(Rollout, rollout_id)
    concerned = select(RolloutDevice).where(
        RolloutDevice.rollout_id == rollout_id,
        RolloutDevice.stage <= rollout.stage,
        RolloutDevice.state.not_in(["succeeded", "left", "restored"]) | (rollout.state == "rolling-back"),
    )
    members = list(session.scalars(concerned))
    return _Look(
        rollout, read_plan(rollout.plan), {row.uid: row for row in members}, gather(session, rollout, members, group)
    )


def _moves(look: _Look, now: float) -> Iterable[tuple[str, Move]]:
    rollout, plan = look.rollout, look.plan
    stage = plan.stage(rollout.stage)
    over = rollout.state == "running" and rollout.stage_at is not None and now >= rollout.stage_at + stage.deadline_s
    trial = rollout.shadow == "models" and plan.behaviour is not None and bool(wanted_models(rollout.document))
    for uid, row in look.members.items():
        member, facts = as_member(row), look.facts[uid]
        if rollout.state == "rolling-back" and row.state not in ("restoring", "restored", "failed", "left"):
            move: Move | None = (
                Move("restoring") if row.state in machine.CHANGED else Move("left", reason="The rollout ended.")
            )
        else:
            move = machine.next_move(member, facts, plan, plan.stage(row.stage), trial=trial, now=now)
            if move is None and over and row.stage == rollout.stage:
                move = machine.at_deadline(member)
        if move is not None:
            yield uid, move


def as_member(row: RolloutDevice) -> Member:
    return Member(uid=row.uid, stage=row.stage, state=row.state, gen=row.gen, at=row.at)  # type: ignore[arg-type]


def _enter(session: Session, look: _Look, moves: Mapping[str, Move], now: float) -> None:
    """Write the moves down, and what a device has before it is changed."""
    shadow = look.rollout.shadow
    for uid, move in moves.items():
        row = session.get_one(RolloutDevice, (look.rollout.id, uid))
        if move.do == "change" and row.before is None and not look.facts[uid].ours:
            old = session.get(ShadowRow, (uid, shadow))
            row.before = (
                {"desired": None, "reported": None}
                if old is None
                else {"desired": old.desired, "reported": old.reported}
            )
        if row.state != move.state:
            row.state, row.at = move.state, now
        row.reason = move.reason or row.reason
        row.checks = {**row.checks, **move.checks}
        look.members[uid] = row


def _conclude(session: Session, rollout_id: str, actor: Actor, now: float) -> bool:
    """What the states of the devices mean for the rollout; whether that changed it."""
    rollout = session.get_one(Rollout, rollout_id)
    rows = list(session.scalars(select(RolloutDevice).where(RolloutDevice.rollout_id == rollout_id)))
    if rollout.state == "rolling-back":
        if any(
            row.state in (*machine.CHANGED, "restoring", "waiting", "trying") and row.stage <= rollout.stage
            for row in rows
        ):
            return False
        return _turn(session, rollout, actor, now, "rolled-back", rollout.reason)
    if rollout.state != "running":
        return False
    plan = read_plan(rollout.plan)
    for index in range(rollout.stage + 1):
        verdict = machine.verdict([as_member(row) for row in rows if row.stage == index], plan)
        if verdict.kind == "fail":
            after = "rolling-back" if plan.on_failure == "roll-back" else "paused"
            return _turn(session, rollout, actor, now, after, f"Stage {index + 1}: {verdict.reason}")
    if verdict.kind == "wait":
        return False
    if rollout.stage + 1 >= plan.count:
        done = any(row.state == "succeeded" for row in rows)
        return _turn(
            session, rollout, actor, now, "succeeded" if done else "failed", "" if done else "No device took it."
        )
    rollout.stage, rollout.stage_at = rollout.stage + 1, now
    if plan.stage(rollout.stage).approval:
        return _turn(
            session,
            rollout,
            actor,
            now,
            "waiting-approval",
            f"Stage {rollout.stage + 1} waits for somebody's approval.",
        )
    return _turn(session, rollout, actor, now, "running", "")


def _turn(session: Session, rollout: Rollout, actor: Actor, now: float, state: str, reason: str) -> bool:
    before = {"state": rollout.state, "stage": rollout.stage}
    rollout.state, rollout.reason, rollout.changed_at = state, reason, now
    after = {"state": state, "stage": rollout.stage, "reason": reason}
    record(session, actor, "rollout.turn", rollout.id, before=before, after=after)
    return True


# --- what is sent -----------------------------------------------------------------------------------------------------------


def _trial_args(document: Mapping[str, Any], plan: RolloutPlan) -> dict[str, Any]:
    assert plan.behaviour is not None
    model = wanted_models(document)[0]
    args = TrialArgs(
        candidate=model["name"],
        source=model.get("source"),
        digest=model.get("digest"),
        baseline=model.get("instead_of"),
        prompts=plan.behaviour.prompts,
        tokens=plan.behaviour.tokens,
    )
    return args.model_dump(exclude_none=True)


def _probe_args(rollout: Rollout) -> dict[str, Any]:
    models: Sequence[Mapping[str, Any]] = wanted_models(rollout.document) if rollout.shadow == "models" else ()
    named = {"model": models[0]["name"]} if models else {}
    return {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, **named}


def _changed(look: _Look, uid: str) -> dict[str, Any]:
    before = look.members[uid].before
    old = None if before is None else before.get("desired")
    return merged(old, look.rollout.document) if look.plan.mode == "merge" else dict(look.rollout.document)


def _restored(rollout: Rollout, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The document that a device had; of one that had none, what it reported, and of models that the rollout brought, that they
    are not served any more."""
    had = before or {}
    if had.get("desired") is not None:
        return dict(had["desired"])
    if rollout.shadow != "models":
        return {}
    old = [model for model in (had.get("reported") or {}).get("models", []) if "name" in model]
    names = {model["name"] for model in old}
    brought = [
        {"name": model["name"], "load": False}
        for model in wanted_models(rollout.document)
        if model["name"] not in names
    ]
    return {"models": [*old, *brought]}
