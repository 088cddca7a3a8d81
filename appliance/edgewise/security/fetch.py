"""Opens a URL that somebody else chose, without being led into the network that the appliance stands in.

Every hop (the URL itself and each redirect) passes the same three gates: the scheme is https; the host resolves to public
addresses only; and the socket is connected to one of the very addresses that were checked, so a name that answers
differently the second time (DNS rebinding) gains nothing. A host may be exempted by name where the operator wants it.
Proxies from the environment are not used: through a proxy the address that is reached could not be checked.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Final, TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from edgewise.core.errors import InvalidRequest, SourceUnavailable

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

USER_AGENT: Final = "edgewise"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_PRINTABLE: Final = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # ASCII without blanks, controls and the backslash
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Special-purpose in IANA's registries, but called global by the tables of older Python releases.
_SPECIAL: Final = tuple(map(ipaddress.ip_network, ("64:ff9b:1::/48", "192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))


class UrlRefused(InvalidRequest):
    """The URL, or one it redirects to, is one that Edgewise does not open."""

    code: ClassVar[str] = "url_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """What may be opened.

    Attributes:
        allow_http: Also unencrypted `http:` (for a LAN or a test), to any host.
        http_hosts: Host names or literal addresses, lower case, to which `http:` is allowed even so.
        private_hosts: Host names or literal addresses, lower case, that the operator named and that may therefore lie at
            loopback, link-local or private addresses. Redirects to any other such host stay refused.
        max_redirects: Hops after the first request.
        timeout_s: Longest silence, in seconds, while connecting and between two pieces of data.
        tls: Certificates to trust; the system's where None.
        remedy: Where the operator names private hosts, for messages.
    """

    allow_http: bool = False
    http_hosts: frozenset[str] = frozenset()
    private_hosts: frozenset[str] = frozenset()
    max_redirects: int = 5
    timeout_s: float = 30.0
    tls: ssl.SSLContext | None = None
    remedy: str = "in `sources.local_hosts` or with `allow_private` in its catalog entry"


def named_hosts(entries: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Hosts from a setting, as `private_hosts` and `http_hosts` of a policy want them: "nas.local" may lie at a private address,
    "http://nas.local" may besides be spoken to without TLS."""
    plain = frozenset(name.removeprefix("http://").lower() for name in entries if name.startswith("http://"))
    return frozenset(name.lower() for name in entries if not name.startswith("http://")) | plain, plain


class Response:
    """An answer whose body has not been read yet. Use it as a context manager; leaving closes the connection.

    Attributes:
        url: Where it came from, after all redirects; its query may hold a signature that is nobody's business.
        status: Of the answer.
        headers: Names in lower case; the values of one that comes several times joined by ", ".
        hops: The headers of each redirect on the way, first one first.
    """

    def __init__(self, connection: http.client.HTTPConnection, raw: http.client.HTTPResponse, url: str) -> None:
        self._connection = connection
        self._raw = raw
        self.url = url
        self.hops: tuple[Mapping[str, str], ...] = ()
        self.status = raw.status
        found: dict[str, str] = {}
        for name, value in raw.getheaders():
            key = name.lower()
            found[key] = f"{found[key]}, {value}" if key in found else value
        self.headers: Mapping[str, str] = found

    @property
    def shown_url(self) -> str:
        """The URL for messages and logs: without its query."""
        return self.url.partition("?")[0]

    def __enter__(self) -> Response:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, also in the middle of the body."""
        self._raw.close()
        self._connection.close()

    def read(self, limit: int) -> bytes:
        """Up to `limit` bytes of the body; empty at its end, or where the other side cut the connection.

        Raises:
            SourceUnavailable: Silence for `timeout_s`, a reset, or malformed framing.
        """
        try:
            return self._raw.read1(limit)
        except (OSError, http.client.HTTPException) as error:
            raise SourceUnavailable(f"{self.shown_url} broke off: {_reason(error)}.") from error


def open_url(url: str, policy: FetchPolicy, headers: Mapping[str, str] | None = None) -> Response:
    """Sends a GET and follows redirects, each checked like the first; the body is left to be read.

    Args:
        url: Absolute URL.
        policy: What may be opened.
        headers: Sent along; credentials among them only to the origin of `url`.

    Raises:
        UrlRefused: `url` or a redirect breaks the policy; the message says how.
        SourceUnavailable: No connection, no answer, or too many redirects. Statuses from 400 are returned, not raised.
    """
    sent = dict(headers or {})
    current = check_url(url, policy)
    hops: tuple[Mapping[str, str], ...] = ()
    for _ in range(policy.max_redirects + 1):
        response = _request(current, policy, sent)
        location = response.headers.get("location")
        if response.status not in _REDIRECTS or location is None:
            response.hops = hops
            return response
        response.close()
        hops = (*hops, response.headers)
        following = check_url(_join(current.geturl(), location), policy)
        if (following.scheme, following.netloc) != (current.scheme, current.netloc):
            sent = {name: value for name, value in sent.items() if name.lower() not in _CREDENTIALS}
        current = following
    raise SourceUnavailable(f"{url} redirects more than {policy.max_redirects} times.")


def _join(base: str, location: str) -> str:
    try:
        return urljoin(base, location)
    except ValueError as error:
        raise UrlRefused(f"{base} redirects to {location[:200]!r}, which is malformed: {error}.") from error


def check_url(url: str, policy: FetchPolicy) -> SplitResult:
    """Splits `url` after checking everything that needs no look-up (scheme, user part, characters, port).

    Raises:
        UrlRefused: The message names the part.
    """
    if not _PRINTABLE.fullmatch(url):
        raise UrlRefused(f"URL {url[:200]!r} has blanks or characters outside ASCII: percent-encode them.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlRefused(f"URL {url[:200]!r} is malformed: {error}.") from error
    plain = policy.allow_http or parts.hostname in policy.http_hosts
    if parts.scheme not in ({"https", "http"} if plain else {"https"}):
        also = " or http" if plain else ""
        raise UrlRefused(f"URL {url[:200]!r} has scheme {parts.scheme!r}: use https{also}.")
    if not parts.hostname or port == 0 or "@" in parts.netloc:
        raise UrlRefused(f"URL {url[:200]!r} needs a host and a valid port, and no user or password.")
    return parts._replace(fragment="")


def is_public(address: Address) -> bool:
    """Whether `address` belongs to the public internet, looking through IPv4 addresses embedded in IPv6 ones."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    special = any(address.version == network.version and address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not special


def _request(parts: SplitResult, policy: FetchPolicy, headers: Mapping[str, str]) -> Response:
    url = parts.geturl()
    connection = CheckedConnection(parts, policy)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("GET", target, headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers})
        return Response(connection, connection.getresponse(), url)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        shown = url.partition("?")[0]  # a query may hold a signature
        raise SourceUnavailable(f"{shown} cannot be reached: {_reason(error)}.") from error
    except InvalidRequest:
        connection.close()
        raise


class CheckedConnection(http.client.HTTPConnection):
    """A connection that resolves, checks and connects in one step, with TLS for https."""

    def __init__(self, parts: SplitResult, policy: FetchPolicy) -> None:
        self._secure = parts.scheme == "https"
        self._policy = policy
        self.default_port = 443 if self._secure else 80  # http.client leaves it out of the Host header
        super().__init__(str(parts.hostname), parts.port or self.default_port, timeout=policy.timeout_s)

    def connect(self) -> None:
        self.sock = _connect_checked(self.host, self.port, self._policy)
        if self._secure:
            context = self._policy.tls or ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


def _connect_checked(host: str, port: int, policy: FetchPolicy) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise UrlRefused(f"Host {host[:200]!r} is not a host name: {error}.") from error
    if host.lower() not in policy.private_hosts:
        for *_, sockaddr in found:
            require_public(host, str(sockaddr[0]), policy.remedy)
    failure: OSError | None = None
    limit = time.monotonic() + policy.timeout_s  # for all addresses: a name may have many that do not answer
    for family, kind, protocol, _, sockaddr in found:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(max(0.001, limit - time.monotonic()))
        try:
            sock.connect(sockaddr)  # a number, not a name: what was checked is what is reached
        except OSError as error:
            sock.close()
            failure = error
        else:
            sock.settimeout(policy.timeout_s)
            return sock
    raise failure or OSError(f"{host} has no address")


def require_public(host: str, literal: str, remedy: str) -> None:
    """Raises `UrlRefused` for an address that is not a public one; `remedy` says where the operator may allow the host."""
    address = ipaddress.ip_address(literal.split("%", 1)[0])
    if not is_public(address):
        raise UrlRefused(f"Host {host!r} lies at {address}, which is not a public address: allow it by name, {remedy}.")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
