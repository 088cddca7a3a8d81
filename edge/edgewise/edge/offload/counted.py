"""What every transport counts: bytes of its messages, all together and of each job."""

from __future__ import annotations

from edgewise.edge.offload.transport import Traffic


class Counted:
    """The counters of a `Transport`. Receipts and budgets have each job's; `sent_bytes` and `received_bytes` are of all messages
    since the start, questions without a job among them."""

    def __init__(self) -> None:
        self._sent = self._received = 0
        self._traffic: dict[str, Traffic] = {}

    @property
    def sent_bytes(self) -> int:
        return self._sent

    @property
    def received_bytes(self) -> int:
        return self._received

    def traffic(self, key: str) -> Traffic:
        return self._traffic.get(key, Traffic())

    def _open_account(self, key: str) -> None:
        """From now on; a job that has one keeps it."""
        self._traffic.setdefault(key, Traffic())

    def _close_account(self, key: str) -> None:
        self._traffic.pop(key, None)

    def _book(self, key: str | None, *, up: int = 0, down: int = 0) -> None:
        """On the account of a job, if it has one."""
        if key in self._traffic:
            before = self._traffic[key]
            self._traffic[key] = Traffic(before.up + up, before.down + down)
