"""Acknowledgements and parts of logs, into the rows of commands: handlers of `ingest.Ingest`."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.changes import Change
from edgewise.cloud.fleet.commands.life import Known, judge
from edgewise.cloud.fleet.db.tables import CommandLog, CommandRow, CommandStep, Device
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.errors import BadMessage
from edgewise.wire.fleet import ENDED, Ack, LogPart

MAX_PARTS = 1000
"""Parts of one log that are kept."""
MAX_STEPS = 500
"""Entries of a command's timeline; further ones change the state only."""


def receive_ack(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/ack/<id>`.

    Raises:
        BadMessage: The device has no such command.
    """
    ack, row = uplink.read(Ack), _command(session, device, uplink.key)
    if ack.state in ("queued", "sent"):
        raise BadMessage(f"A device cannot make a command {ack.state}.")
    verdict = judge(Known(row.state, (row.ep, row.seq)), ack.state, uplink.envelope.place)  # type: ignore[arg-type]
    if verdict == "old":
        return []
    if verdict == "late":
        if ack.state not in ENDED:
            return []  # whoever follows the device asks it to stop
        reason = f"came after the command had been {row.state} here: {ack.reason}".rstrip(": ")
        add_step(session, row.id, ack.state, uplink.at, reason=reason, message_id=uplink.envelope.id)
        return [Change(device.tenant_id, "command", row.id)]
    if ack.text is not None and row.state == ack.state:
        return []  # a piece of a streamed answer: whoever reads it gets it, the whole is in the result
    row.ep, row.seq = uplink.envelope.place
    row.state, row.step, row.percent, row.changed_at = ack.state, ack.step, ack.percent, uplink.at
    row.code, row.reason, row.retryable, row.result = ack.code, ack.reason, ack.retryable, ack.result
    count = select(func.count()).where(CommandStep.command_id == row.id)
    if (session.scalar(count) or 0) < MAX_STEPS or ack.state in ENDED:
        add_step(
            session,
            row.id,
            ack.state,
            uplink.at,
            step=ack.step,
            percent=ack.percent,
            reason=ack.reason,
            message_id=uplink.envelope.id,
        )
    return [Change(device.tenant_id, "command", row.id)]


def receive_log(session: Session, device: Device, uplink: Uplink) -> list[Change]:
    """Handler of `up/log/<id>`."""
    part, row = uplink.read(LogPart), _command(session, device, uplink.key)
    if part.index >= MAX_PARTS:
        raise BadMessage(f"A log has part {part.index}; at most {MAX_PARTS} are kept.")
    session.merge(CommandLog(command_id=row.id, part=part.index, lines=list(part.lines)))
    return [Change(device.tenant_id, "command", row.id)]


def add_step(
    session: Session,
    command_id: str,
    state: str,
    at: float,
    *,
    step: str = "",
    percent: float | None = None,
    reason: str = "",
    message_id: str | None = None,
) -> None:
    """A line of the timeline."""
    session.add(
        CommandStep(
            command_id=command_id,
            message_id=message_id,
            state=state,
            step=step,
            percent=percent,
            reason=reason,
            at=at,
        )
    )


def _command(session: Session, device: Device, id: str) -> CommandRow:
    query = select(CommandRow).where(CommandRow.id == id, CommandRow.uid == device.uid).with_for_update(key_share=True)
    row = session.scalars(query).first()
    if row is None:
        raise BadMessage(f"There is no command {id[:32]!r} for {device.uid}.")
    return row
