"""Results to webhooks."""

from __future__ import annotations

from edgewise.core.errors import EdgewiseError, SourceUnavailable
from edgewise.edge.outbox.courier import NotDelivered
from edgewise.edge.outbox.job import Job
from edgewise.security.webhook import WebhookSender

_GONE = 410


class Webhook:
    """A carrier that posts; the message's id is the job's on every try."""

    def __init__(self, sender: WebhookSender) -> None:
        self._sender = sender

    def __repr__(self) -> str:
        return f"Webhook({self._sender!r})"

    async def carry(self, job: Job, message: bytes) -> None:
        """Returns once the receiver has answered with a status of success.

        Raises:
            NotDelivered: It has not, as far as is known.
        """
        try:
            status = await self._sender.send(job.deliver, job.id, message)
        except EdgewiseError as error:
            raise NotDelivered(error.message, away=isinstance(error, SourceUnavailable)) from error
        if not 200 <= status < 300:
            raise NotDelivered(f"The receiver answered {status}.", for_good=status == _GONE)

    async def close(self) -> None:
        await self._sender.close()
