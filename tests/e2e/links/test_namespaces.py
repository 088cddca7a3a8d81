"""Two hosts reach each other by their addresses, and not while the cable is pulled."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.links.namespaces import Host, NoNamespaces, two_hosts

LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 7777)) as listener:
    print("listening", flush=True)
    while True:
        peer, address = listener.accept()
        peer.sendall(address[0].encode())
        peer.close()
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7777), timeout=float(sys.argv[2])) as peer:
    print(peer.recv(100).decode())
"""


def ask(host: Host, address: str, timeout_s: float) -> str:
    """What the listener says; empty if it is not reached in time."""
    command = [*host.prefix, sys.executable, "-c", ASK, address, str(timeout_s)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()


def test_a_cable_that_is_pulled_and_plugged_in_again() -> None:
    try:
        with two_hosts() as hosts:
            command = [*hosts.cloud.prefix, sys.executable, "-c", LISTEN, hosts.cloud.address]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
                try:
                    assert listener.stdout is not None
                    assert listener.stdout.readline() == "listening\n"
                    assert ask(hosts.device, hosts.cloud.address, 20) == hosts.device.address
                    hosts.pull()
                    assert ask(hosts.device, hosts.cloud.address, 0.5) == ""
                    hosts.plug()
                    assert ask(hosts.device, hosts.cloud.address, 20) == hosts.device.address
                finally:
                    listener.kill()
    except NoNamespaces as reason:
        pytest.skip(str(reason))
