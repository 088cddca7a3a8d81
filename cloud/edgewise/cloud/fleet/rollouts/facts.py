"""What the database knows of the devices of a rollout, as `machine.py` wants it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.tables import CommandRow, Device, Rollout, RolloutDevice, ShadowRow
from edgewise.cloud.fleet.rollouts.machine import Facts, Outcome

TRY, PROBE = "try", "probe"
_PRESENT = ("online", "degraded", "draining")
_CHUNK = 500  # bound variables of one statement

Item = TypeVar("Item")


def author(rollout_id: str) -> str:
    """As whom a rollout desires: how its own documents are known."""
    return f"rollout {rollout_id}"


def command_key(rollout_id: str, what: str) -> str:
    """Idempotency key of a rollout's command to each of its devices."""
    return f"rollout:{rollout_id}:{what}"


def gather(
    session: Session, rollout: Rollout, members: Sequence[RolloutDevice], group: Collection[str]
) -> dict[str, Facts]:
    """Facts by uid. `group` has all devices that the rollout's query matches now."""
    uids = [member.uid for member in members]
    devices = {row.uid: row for row in _chunked(session, Device, Device.uid, uids)}
    shadows = {
        row.uid: row for row in _chunked(session, ShadowRow, ShadowRow.uid, uids, ShadowRow.shadow == rollout.shadow)
    }
    trials = _outcomes(session, uids, command_key(rollout.id, TRY))
    probes = _outcomes(session, uids, command_key(rollout.id, PROBE))
    facts = {}
    for uid in uids:
        device, shadow = devices.get(uid), shadows.get(uid)
        facts[uid] = Facts(
            present=device is not None and device.state in _PRESENT,
            healthy=device is not None and device.state == "online",
            away=device is not None and device.state in ("draining", "offline-expected"),
            gone=device is None or device.retired_at is not None or uid not in group,
            gen=0 if shadow is None else shadow.gen,
            ours=shadow is not None and shadow.author == author(rollout.id),
            seen=0 if shadow is None else shadow.seen,
            applied=0 if shadow is None else shadow.applied,
            refused=shadow.reason if shadow is not None and shadow.state == "refused" else None,
            holds=device is not None and _holds(rollout, device, shadow),
            trial=trials.get(uid),
            probe=probes.get(uid),
        )
    return facts


def _outcomes(session: Session, uids: Sequence[str], key: str) -> dict[str, Outcome]:
    rows = _chunked(session, CommandRow, CommandRow.uid, uids, CommandRow.key == key)
    return {row.uid: Outcome(state=row.state, reason=row.reason, result=row.result or {}) for row in rows}


def _holds(rollout: Rollout, device: Device, shadow: ShadowRow | None) -> bool:
    """Whether the device reports what the document asks for: the digests of models, the version of the software."""
    if rollout.shadow == "software":
        return device.version == rollout.document.get("version")
    if rollout.shadow != "models":
        return True
    reported = (shadow.reported or {}).get("models", []) if shadow is not None else []
    held = [*device.models, *reported]
    return all(any(_is(wanted, model) for model in held) for wanted in wanted_models(rollout.document))


def wanted_models(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a document that bring a model in."""
    models = document.get("models", [])
    return [model for model in models if isinstance(model, Mapping) and "name" in model and model.get("load", True)]


def _is(wanted: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    same = wanted["name"] == model.get("name") and wanted.get("digest") in (None, model.get("digest"))
    return same and model.get("state", "ready") == "ready"


def _chunked(session: Session, table: type[Item], column: Any, values: Sequence[str], *where: Any) -> Iterator[Item]:
    for begin in range(0, len(values), _CHUNK):
        yield from session.scalars(select(table).where(column.in_(values[begin : begin + _CHUNK]), *where))
