"""From a message on `dn/cmd/<op>` to a command on disk, or to a refusal that is on disk as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgewise.core.errors import BadMessage, EdgewiseError
from edgewise.edge.agent.commands.lanes import failure
from edgewise.edge.agent.commands.operation import Operation, UnknownOperation
from edgewise.edge.agent.commands.record import Order
from edgewise.wire import codec
from edgewise.wire.envelope import Envelope, VersionRefused, decode, is_ulid
from edgewise.wire.fleet import Ack, Command


@dataclass(frozen=True, slots=True)
class Arrived:
    """A command and, where it cannot be done, why not."""

    order: Order
    refusal: Ack | None


def read_command(payload: bytes, op: str, operations: Mapping[str, Operation], *, waited_s: float, own: str) -> Arrived:
    """The command in a message.

    Args:
        op: Of its topic.
        waited_s: How long ago it arrived.
        own: What the device's own topics begin with: answers are wanted nowhere else.

    Raises:
        BadMessage: It has no id, so that it cannot even be answered.
    """
    try:
        envelope = decode(payload)
    except VersionRefused as error:
        plain = codec.decode(payload)
        id = plain.get("id")
        if not is_ulid(id):
            raise
        return Arrived(_order(str(id), op, None), failure(error, "rejected"))
    reply = envelope.to if envelope.to is not None and envelope.to.startswith(own) else None
    if envelope.ttl_ms is not None and waited_s * 1000 >= envelope.ttl_ms:
        return Arrived(_order(envelope.id, op, reply), Ack(state="expired", reason="It waited longer than its ttl_ms."))
    try:
        return Arrived(_checked(envelope, op, operations, reply), None)
    except EdgewiseError as error:
        return Arrived(_order(envelope.id, op, reply), failure(error, "rejected"))


def _checked(envelope: Envelope, op: str, operations: Mapping[str, Operation], reply: str | None) -> Order:
    command = envelope.read(Command)
    if command.op != op:
        raise BadMessage(f"The topic names the operation '{op}' and the message '{command.op}'.", param="op")
    operation = operations.get(op)
    if operation is None:
        raise UnknownOperation(f"This device has no operation '{op}'; it has: {', '.join(operations)}.", param="op")
    operation.check(command.args)
    return Order(
        id=envelope.id,
        op=op,
        lane=operation.lane,
        args=command.args,
        reply=reply,
        total_s=operation.total_s if command.total_s is None else command.total_s,
        step_s=operation.step_s if command.step_s is None else command.step_s,
    )


def _order(id: str, op: str, reply: str | None) -> Order:
    """Of a command that is refused: its arguments are not kept."""
    return Order(id=id, op=op, lane="control", args={}, reply=reply, total_s=0.0, step_s=0.0)
