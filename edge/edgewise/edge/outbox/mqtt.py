"""Results over MQTT: published again and again until their receiver, not only the broker, says that it has them.

A result goes to `f/1/d/<uid>/up/result/<id>` as `JobResult`; its receiver answers on `f/1/d/<uid>/dn/result/<id>` with a
`JobControl`: "ack", or "cancel" if it wants to be sent it no more. The envelope's `key` is the job's id on every try. A message
on `f/1/host/live` says that a receiver is there again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from edgewise.core.errors import BadMessage, EdgewiseError, LinkLost, PayloadTooLarge
from edgewise.core.log import get_logger
from edgewise.core.patience import within
from edgewise.edge.outbox.courier import NotDelivered
from edgewise.edge.outbox.job import Job
from edgewise.wire import topics
from edgewise.wire.envelope import decode, encode
from edgewise.wire.messages import JobControl, JobResult
from edgewise.wire.mqtt.connection import Incoming
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)


class MqttCarrier:
    """A carrier over the device's one link to its broker.

    Args:
        link: Not yet started; whoever made it stops it.
        patience_s: Longest time for one try.
        on_receiver: Called when a receiver says that it is there.
    """

    def __init__(self, link: Link, *, patience_s: float, on_receiver: Callable[[], None]) -> None:
        self._link = link
        self._patience_s = patience_s
        self._answers: dict[str, asyncio.Future[JobControl]] = {}
        self._ours = topics.result(link.uid, "dn", "x")[:-1]
        link.on(topics.down(link.uid), self._arrived)
        link.on(topics.HOST_LIVE, lambda _: on_receiver())

    def __repr__(self) -> str:
        return f"MqttCarrier({self._link.uid}, waiting={len(self._answers)})"

    async def carry(self, job: Job, message: bytes) -> None:
        """Returns once the receiver has acknowledged the message.

        Raises:
            NotDelivered: It has not, as far as is known.
        """

        def late() -> EdgewiseError:
            return LinkLost(f"Nobody behind the broker acknowledged it within {self._patience_s:g} s.")

        self._link.start()
        try:
            answer = await within(
                self._exchange(job.id, JobResult.model_validate_json(message)), self._patience_s, late
            )
        except EdgewiseError as error:
            away = not self._link.connected
            raise NotDelivered(error.message, for_good=isinstance(error, PayloadTooLarge), away=away) from error
        if answer.op == "cancel":
            raise NotDelivered("The receiver wants it no more.", for_good=True)

    async def close(self) -> None:
        """The link is not this carrier's to stop."""

    async def _exchange(self, id: str, result: JobResult) -> JobControl:
        answer: asyncio.Future[JobControl] = asyncio.get_running_loop().create_future()
        self._answers[id] = answer
        try:
            await self._link.wait_connected(self._patience_s)
            ended = self._link.connection.ended
            sealed = encode(self._link.sealer.seal(result, key=id))
            await self._link.publish(topics.result(self._link.uid, "up", id), sealed)
            both: set[asyncio.Future[Any]] = {answer, ended}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._answers[id]
        if not answer.done():
            raise LinkLost("The link to the broker was lost before the receiver acknowledged it.")
        return answer.result()

    def _arrived(self, incoming: Incoming) -> None:
        """An answer of a receiver. What is malformed is dropped; what nobody waits for is not looked at."""
        if not incoming.topic.startswith(self._ours):
            return
        try:
            control = decode(incoming.payload).read(JobControl)
        except BadMessage as error:
            log.warning("mqtt_message_dropped", topic=incoming.topic[:200], reason=error.message)
            return
        answer = self._answers.get(control.key)
        if answer is not None and not answer.done() and control.op in ("ack", "cancel"):
            answer.set_result(control)
