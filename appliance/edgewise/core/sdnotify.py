"""Tells systemd how the service is doing: sd_notify(3) over the datagram socket that NOTIFY_SOCKET names.

Outside systemd the variable is unset and every method does nothing, so the same code runs at a desk and on a device.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from edgewise.core.log import get_logger

log = get_logger(__name__)


class Notifier:
    """Sends state changes to systemd.

    Args:
        address: Value of NOTIFY_SOCKET: a path, or "@name" for an abstract socket; None makes every method a no-op.
        watchdog_s: Time within which systemd expects `watchdog`, in seconds; None when it expects none.
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._failed = False

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] | None = None) -> Notifier:
        """Read and remove systemd's variables, so that child processes do not speak for the service."""
        env = os.environ if environ is None else environ
        address = env.pop("NOTIFY_SOCKET", None) or None
        usec, pid = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if address and ours and usec.isdigit() and int(usec) else None
        if address is not None and address[0] not in "/@":
            log.warning("sdnotify_address_unsupported", address=address)
            address = None
        return cls(address, watchdog_s=watchdog_s)

    def __repr__(self) -> str:
        return f"Notifier(address={self._address!r}, watchdog_s={self._watchdog_s})"

    @property
    def enabled(self) -> bool:
        return self._address is not None

    @property
    def watchdog_interval_s(self) -> float | None:
        """How often to call `watchdog`: half of systemd's limit (sd_watchdog_enabled(3)); None when not asked for."""
        return None if self._watchdog_s is None else self._watchdog_s / 2

    def ready(self, status: str = "") -> bool:
        return self._send(["READY=1", *_status(status)])

    def status(self, text: str) -> bool:
        return self._send(_status(text))

    def stopping(self, status: str = "") -> bool:
        return self._send(["STOPPING=1", *_status(status)])

    def watchdog(self) -> bool:
        return self._send(["WATCHDOG=1"])

    def extend_timeout(self, seconds: float) -> bool:
        """Ask for `seconds` more from now for the start or stop in progress; repeat before they are over."""
        return self._send([f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"])

    def _send(self, lines: list[str]) -> bool:
        """True if systemd has the message; a failure is logged once: a service must not die of its supervisor."""
        if self._address is None or not lines:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as channel:
                channel.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._failed:
                log.warning("sdnotify_failed", address=self._address, error=str(error))
            self._failed = True
            return False
        self._failed = False
        return True


def _status(text: str) -> list[str]:
    """A status is one line: a line break in it would start a second assignment."""
    return [f"STATUS={' '.join(text.split())}"] if text else []
