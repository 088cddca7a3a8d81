"""Sends to a URL that somebody else chose, through the gates of `security.fetch`: a webhook must not reach into our network."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import SplitResult

from edgewise.core.errors import SourceUnavailable
from edgewise.security.fetch import USER_AGENT, CheckedConnection, FetchPolicy, check_url, require_public


def check_target(url: str, policy: FetchPolicy) -> SplitResult:
    """What can be checked of a URL before anything is sent; a host given by name is looked up only then.

    Raises:
        UrlRefused: The message names the part that breaks the policy.
    """
    parts = check_url(url, policy)
    host = str(parts.hostname)
    with contextlib.suppress(ValueError):  # a name
        if host.lower() not in policy.private_hosts:
            require_public(host, str(ipaddress.ip_address(host)), policy.remedy)
    return parts


class Post:
    """One POST that follows no redirect; `run` it on a thread of its own, from which `abort` brings it back.

    Args:
        url: Absolute URL.
        policy: What may be reached; `timeout_s` is the longest silence.
    """

    def __init__(self, url: str, policy: FetchPolicy) -> None:
        self._parts = check_target(url, policy)
        self._connection = CheckedConnection(self._parts, policy)

    def run(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the answer, whose body is not read.

        Raises:
            UrlRefused: The host lies where it must not.
            SourceUnavailable: No connection, or no answer: whether the other side has got it is not known.
        """
        parts = self._parts
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            self._connection.request("POST", target, body=body, headers={"User-Agent": USER_AGENT, **headers})
            return self._connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            shown = parts.geturl().partition("?")[0]  # a query may hold a secret
            raise SourceUnavailable(f"{shown} cannot be reached: {error or type(error).__name__}.") from error
        finally:
            self._connection.close()

    def abort(self) -> None:
        """End a `run` under way, at the latest with its attempt to connect. Safe to call at any time."""
        sock = self._connection.sock
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):  # it has ended by itself
                sock.shutdown(socket.SHUT_RDWR)
