"""Commands that ended long ago, deleted a few at a time with their timelines and logs."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgewise.cloud.fleet.db.tables import CommandLog, CommandRow, CommandStep, Rollout
from edgewise.cloud.fleet.rollouts.facts import PROBE, TRY, command_key
from edgewise.cloud.fleet.views import GOING
from edgewise.wire.fleet import ENDED

_COMMANDS = 100  # of one transaction: each may have hundreds of steps and parts of a log


def delete_ended(session: Session, before: float) -> int:
    """Delete some commands that ended before a moment; returns how many, 0 when none is left.

    Those of a rollout stay as long as it goes on: what it no longer finds it would ask for again.
    """
    rollouts = session.scalars(select(Rollout.id).where(Rollout.state.in_(GOING)))
    theirs = [command_key(rollout, what) for rollout in rollouts for what in (TRY, PROBE)]
    query = (
        select(CommandRow.id)
        .where(CommandRow.changed_at < before, CommandRow.state.in_(ENDED))
        .where(CommandRow.key.is_(None) | CommandRow.key.not_in(theirs))
        .order_by(CommandRow.changed_at)
        .limit(_COMMANDS)
        .with_for_update()  # an acknowledgement that comes meanwhile waits, and finds the command gone
    )
    ids = list(session.scalars(query))
    if ids:
        session.execute(delete(CommandStep).where(CommandStep.command_id.in_(ids)))
        session.execute(delete(CommandLog).where(CommandLog.command_id.in_(ids)))
        session.execute(delete(CommandRow).where(CommandRow.id.in_(ids)))
    return len(ids)
