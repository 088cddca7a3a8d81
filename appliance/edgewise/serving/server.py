"""The HTTP server of a service that drains: a stop signal first lets running answers finish, then closes."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from edgewise.core.errors import ConfigError

_BACKLOG = 2048
_REMEDIES = {
    errno.EADDRINUSE: "Is the service running already? Choose another port with --port.",
    errno.EACCES: "Ports below 1024 belong to root: choose another with --port.",
    errno.EADDRNOTAVAIL: "This machine has no such address: choose one of its own, 127.0.0.1 or 0.0.0.0 with --host.",
}
_NO_NAME = "The name is unknown: choose an address of this machine with --host."


class AddressUnavailable(ConfigError):
    """The port is taken, or the address is not there: another program may end, a network come up, so a retry can help."""

    retryable = True


class DrainingServer(uvicorn.Server):
    """uvicorn, except that the first SIGTERM or SIGINT calls `on_stop` instead of closing connections at once.

    Whoever handles `on_stop` drains and then calls `close`. A second signal closes without waiting. The captured signal is not
    raised again afterwards, so a drained stop ends with exit code 0.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._stops = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (uvicorn's signature)
        self._stops += 1
        if self._stops == 1:
            self._on_stop()
        else:
            self.force_exit = True
            self.close()

    def close(self) -> None:
        """Stop accepting, close connections, end `serve`."""
        self.should_exit = True


def listen(host: str, port: int) -> list[socket.socket]:
    """Bound, listening sockets, one for each address that `host` stands for; port 0 takes the same free port on all.

    "::" takes IPv4 callers too, whatever the system's default is.

    Raises:
        AddressUnavailable: The port is taken, or this machine does not have the address (yet).
        ConfigError: The name is unknown, or the port is not permitted. All say what to do.
    """
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            bound_port = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_bind(family, (address[0], bound_port, *address[2:]), both=host == "::"))
    except OSError as error:
        for bound in sockets:
            bound.close()
        remedy = _NO_NAME if isinstance(error, socket.gaierror) else _REMEDIES.get(error.errno or 0, "")
        kind = AddressUnavailable if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) else ConfigError
        raise kind(
            f"Cannot listen on {host} port {port}: {error.strerror or error}. {remedy}".rstrip(),
            param="port",
        ) from error
    return sockets


def _bind(family: int, address: tuple[object, ...], *, both: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
