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


_LAN = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "127.0.0.0/8"),
        *("fc00::/7", "fe80::/10", "::1/128"),
    )
)


def is_lan(host: str) -> bool:
    """Whether `host` is an address of private use, link-local or loopback, also as IPv4 mapped into IPv6. A name is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in _LAN if network.version == address.version)


def connectable(host: str) -> str:
    """Where a program on this machine reaches a server that listens on `host`: "all addresses" is no destination."""
    return _ANY.get(host, host)
