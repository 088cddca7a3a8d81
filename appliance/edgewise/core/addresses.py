"""Which addresses mean this machine."""

from __future__ import annotations

import ipaddress

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (read, not bound)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address in IPv4, IPv6 or IPv4 mapped into IPv6. A name, "localhost" too, is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def connectable(host: str) -> str:
    """Where a program on this machine reaches a server that listens on `host`: "all addresses" is no destination."""
    return _ANY.get(host, host)
