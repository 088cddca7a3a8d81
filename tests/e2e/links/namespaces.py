"""Two hosts on one machine: network namespaces with addresses of their own and a cable between them that can be pulled."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000  # sched.h


class NoNamespaces(Exception):
    """They cannot be made here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A network namespace.

    Attributes:
        prefix: Put before a command, it runs there.
    """

    name: str
    address: str
    interface: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """A device's and a cloud's host, which reach each other and nothing else."""

    device: Host
    cloud: Host

    def pull(self) -> None:
        """Pull the cable: nothing passes and nobody is told."""
        ip("-n", self.device.name, "link", "set", self.device.interface, "down")

    def plug(self) -> None:
        """Plug it in again."""
        ip("-n", self.device.name, "link", "set", self.device.interface, "up")


@contextmanager
def inside(host: Host) -> Iterator[ThreadPoolExecutor]:
    """A thread of this process that lives on a host: its connections, and processes that it starts, are that host's."""

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", host.name).open("rb") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {host.name}")

    with ThreadPoolExecutor(1, thread_name_prefix=host.name, initializer=enter) as thread:
        yield thread


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, timeout=30)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Both hosts, gone when the block is left; end what runs in them first.

    Raises:
        NoNamespaces: No root, no `ip` command, or a kernel or container that does not allow it.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise NoNamespaces("it needs root and the ip command (package iproute2)")
    tag = f"{os.getpid() % 10**6}"
    hosts = TwoHosts(
        Host(name=f"edgewise-device-{tag}", address="10.77.0.1", interface=f"ewd{tag}"),
        Host(name=f"edgewise-cloud-{tag}", address="10.77.0.2", interface=f"ewc{tag}"),
    )
    made = []
    try:
        for host in (hosts.device, hosts.cloud):
            done = subprocess.run(["ip", "netns", "add", host.name], check=False, capture_output=True, timeout=30)
            if done.returncode != 0:
                raise NoNamespaces("this kernel or container does not allow network namespaces")
            made.append(host)
        one, other = hosts.device, hosts.cloud
        ip(
            *("link", "add", one.interface, "netns", one.name),
            *("type", "veth", "peer", "name", other.interface, "netns", other.name),
        )
        for host in made:
            ip("-n", host.name, "addr", "add", f"{host.address}/30", "dev", host.interface)
            ip("-n", host.name, "link", "set", host.interface, "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in made:
            ip("netns", "del", host.name)  # its end of the cable goes with it
