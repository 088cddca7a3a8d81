"""What strangers get of a fleet, and what a device gets of another one: nothing.

Fleet service, device and cloud engine listen at an address that is not loopback, on a host of their own (a network namespace),
and so does mosquitto as `edgewise fleet broker-config` sets it up. From another host everything that the services' own OpenAPI
documents name is called without a key and with a wrong one, and the broker is tried without a certificate. Then a device with a
certificate tries each way to another device's topics, while that device and its fleet talk.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from edgewise.bench.fleet.device import Behaviour
from edgewise.cloud.fleet.enrolment.authority import Authority, read_csr
from edgewise.core.errors import EdgewiseError, LinkLost, NotPermitted
from edgewise.edge.enrol.client import make_csr
from edgewise.edge.enrol.folder import key_pem, new_key
from edgewise.security.keys import KeyStore
from edgewise.wire import topics
from edgewise.wire.envelope import Sealer, encode
from edgewise.wire.fleet import Ack
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Subscription, Will
from scripts.service import CloudService, DeviceService
from tests.accept.fleet_world import World, device_home, until, world
from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.links.namespaces import Host, NoNamespaces, inside, two_hosts
from tests.e2e.service import suite_limits

HEALTH = ("/healthz", "/readyz")
LOGIN_PAGES = ("/login", "/assets/", "/_nicegui/")
"""What a browser needs to show the login of the console; files of the package, the same for everybody."""
METHODS = ("get", "put", "post", "delete", "patch")
SECRET = "for the other device alone"


@dataclass
class Found:
    """Attributes:
    calls: How many were tried.
    leaks: What should not have been.
    """

    calls: int = 0
    leaks: list[str] = field(default_factory=list)


# --- strangers --------------------------------------------------------------------------------------------------------------


def ask_all(url: str, document: dict[str, Any], verify: ssl.SSLContext | bool) -> Found:
    """Call every operation of a service as somebody without a key, and with a wrong one."""
    found = Found()
    with httpx.Client(base_url=url, verify=verify, timeout=60, trust_env=False) as client:
        for headers in ({}, {"Authorization": "Bearer ew-wrong"}, {"Cookie": "edgewise_session=wrong"}):
            for path, operations in {"/": {"get": {}}, "/openapi.json": {"get": {}}, **document["paths"]}.items():
                at = "".join("x" if part.startswith("{") else part for part in _parts(path))
                for method in (one for one in METHODS if one in operations):
                    body: dict[str, Any] | None = {} if method in ("put", "post", "patch") else None
                    response = client.request(method, at, json=body, headers=headers)
                    found.calls += 1
                    if response.is_success and path not in HEALTH and not path.startswith(LOGIN_PAGES):
                        found.leaks.append(
                            f"{method.upper()} {at} {headers}: {response.status_code} {response.text[:80]}"
                        )
    return found


def _parts(path: str) -> list[str]:
    return path.replace("{", "\0{").replace("}", "}\0").split("\0")


def listening(host: Host) -> set[int]:
    """TCP ports of this thread's host that others reach."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/thread-self/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, port = local.rpartition(":")
            loopback = address in ("0100007F", "00000000000000000000000001000000")
            if state == "0A" and not loopback:
                ports.add(int(port, 16))
    assert ports, host
    return ports


async def gets_in(broker: Broker) -> bool:
    connection = Connection(broker, lambda _: None)
    try:
        await connection.open()
        await connection.publish(topics.live(broker.uid), b"x")
    except EdgewiseError:
        return False
    finally:
        await connection.close()
    return True


async def strangers_at_the_broker(device: Broker, folder: Path) -> Found:
    """`device` is one that may; each stranger lacks something."""
    key, foreign = new_key(), folder / "foreign.pem"
    issued = Authority(folder / "foreign-ca").device_certificate(read_csr(make_csr(key)), device.uid, 90)
    foreign.write_text(key_pem(key) + issued.pem)
    strangers = {
        "without TLS": replace(device, ca_file=None, cert_file=None, key_file=None),
        "without a certificate": replace(device, cert_file=None, key_file=None),
        "with a password": replace(device, cert_file=None, key_file=None, uid="fleet", password="fleet"),
        "with a certificate of another authority": replace(device, cert_file=foreign, key_file=foreign),
    }
    found = Found()
    for who, stranger in strangers.items():
        found.calls += 1
        if await gets_in(stranger):
            found.leaks.append(f"the broker lets somebody in {who}")
    return found


# --- another device ---------------------------------------------------------------------------------------------------------


class Attacker:
    """A device with a certificate, and what it hears and can say."""

    def __init__(self, broker: Broker, victim: str) -> None:
        self.broker = broker
        self.victim = victim
        self.heard: list[Incoming] = []
        self._connection: Connection | None = None
        self._sealer = Sealer(10**6)

    def forged(self, re: str | None = None) -> bytes:
        return encode(self._sealer.seal(Ack(state="succeeded", result={"forged": True}), re=re))

    async def connection(self, will: Will | None = None) -> Connection:
        """The one there is, or a new one: the broker may have ended it."""
        if self._connection is None or self._connection.ended.done() or will is not None:
            await self.close()
            self._connection = Connection(self.broker, self.heard.append, will=will)
            await self._connection.open()
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def say(self, topic: str, *, retain: bool, re: str | None = None) -> None:
        with suppress(NotPermitted, LinkLost, ValueError):
            await (await self.connection()).publish(topic, self.forged(re=re), retain=retain)

    async def listen(self, filter: str) -> None:
        with suppress(NotPermitted, LinkLost, ValueError):
            await (await self.connection()).subscribe([Subscription(filter)])

    async def leave_a_will(self, topic: str) -> None:
        """Connect with it, and go without a word."""
        with suppress(NotPermitted, LinkLost, ValueError):
            connection = await self.connection(Will(topic, self.forged()))
            connection.end("cut")
        await self.close()


def ways(attacker: Attacker, command: str) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Each way to another device's topics; `command` is one that it works at."""
    victim = attacker.victim
    targets = [
        *(topics.live(victim), topics.birth(victim), topics.sync(victim), topics.ack(victim, command)),
        *(topics.reported(victim, "config"), topics.telemetry(victim, "main"), topics.event(victim, "critical")),
        *(topics.desired(victim, "config"), topics.command(victim, "restart"), topics.control(victim, command)),
        *(topics.received(victim), topics.log_part(victim, command), topics.HOST_LIVE, f"f/1/job/any/{victim}"),
        *(topics.command(attacker.broker.uid, "restart"), topics.desired(attacker.broker.uid, "config")),
    ]
    filters = [
        *(topics.down(victim), f"f/1/d/{victim}/up/#", f"f/1/d/{victim}/#", "f/1/d/+/dn/#", "f/1/d/+/dn/cmd/+"),
        *("f/1/#", "#", "+/#", f"+/1/d/{victim}/dn/#", "f/1/+/+/dn/#", "f/1/d/+/up/#", "f/1/job/#", "$SYS/#"),
        *(f"$share/g/f/1/d/{victim}/dn/#", "$share/g/f/1/#", "$share/g/#", f"$share/{victim}/f/1/d/+/dn/#"),
    ]
    own = topics.ack(attacker.broker.uid, command)  # its own topic, but another's command
    return [
        *(partial(attacker.say, topic, retain=retain) for topic in targets for retain in (False, True)),
        *(partial(attacker.leave_a_will, topic) for topic in targets),
        *(partial(attacker.listen, filter) for filter in filters),
        partial(attacker.say, own, retain=False, re=command),
    ]


async def attack(fleet: World, count: int) -> Found:
    """`count` tries, all ways in turn and then by chance, while the fleet talks to the victim; then what came of them."""
    (victim,) = await fleet.add(Behaviour(slow_s=1e6), period_s=1.0)
    attacker = Attacker(await fleet.enrol(await fleet.code(), "attacker"), victim.uid)
    onlooker, heard = await onlooking(fleet)
    await fleet.online(1)
    desired = {"log.level": "debug"}
    await fleet.call("PUT", f"devices/{victim.uid}/shadows/config", json={"document": desired})
    command = await fleet.command(victim.uid, "infer", prompt=SECRET, max_tokens=4)
    tries = ways(attacker, command)
    random.Random(7).shuffle(tries)
    for number in range(count):
        await tries[number % len(tries)]()
        if number % 5 == 0:
            await fleet.command(victim.uid, "ping", key=f"{number}")
        if number % 20 == 19:
            progress(f"{number + 1} of {count} tries")
    marker = "f/1/marker"
    await onlooker.publish(marker, b"")
    await until(lambda: _true(any(one.topic == marker for one in heard)), "the onlooker has heard all")
    found = Found(calls=count)
    allowed = f"f/1/d/{attacker.broker.uid}/up/"
    found.leaks += [
        f"said at {one.topic}" for one in heard if b"forged" in one.payload and not one.topic.startswith(allowed)
    ]
    found.leaks += [
        f"heard {one.topic}" for one in attacker.heard if victim.uid in one.topic or not _its(one, attacker)
    ]
    shown = await fleet.call("GET", f"commands/{command}")
    if shown["state"] not in ("accepted", "running"):
        found.leaks.append(f"the victim's command is {shown['state']}: {shown['result']}")
    shadow = await fleet.call("GET", f"devices/{victim.uid}/shadows/config")
    state = await fleet.state(victim.uid)
    if (shadow["desired"], state) != (desired, "online"):
        found.leaks.append(f"the victim is shown as {state}, with {shadow['desired']}")
    await attacker.close()
    await onlooker.close()
    return found


def _its(incoming: Incoming, attacker: Attacker) -> bool:
    return incoming.topic.startswith(f"f/1/d/{attacker.broker.uid}/dn/") or incoming.topic == topics.HOST_LIVE


async def _true(value: bool) -> bool:
    return value


async def onlooking(fleet: World) -> tuple[Connection, list[Incoming]]:
    """Everything that passes, as the cloud engine's account."""
    heard: list[Incoming] = []
    password = (fleet.home / "broker" / "edgewise-cloud.password").read_text().strip()
    at = Broker(host="127.0.0.1", port=fleet.broker.port, uid="edgewise-cloud", password=password)
    connection = Connection(at, heard.append)
    await connection.open()
    await connection.subscribe([Subscription("f/1/#")])
    return connection, heard


# --- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    url: str
    document: dict[str, Any]
    verify: ssl.SSLContext | bool = True


def engines(stack: ExitStack, host: str) -> list[Service]:
    """A device and a cloud engine at that address."""
    found, started = [], []
    for kind in (DeviceService, CloudService):
        home = stack.enter_context(device_home())
        with KeyStore(home / "keys.db") as keys:
            _, key = keys.create("known", ttl_s=3600.0)
        service = kind(home, ["--model", "tiny"], host=host, environment=suite_limits())
        service.start()
        stack.callback(service.stop)
        started.append((service, {"Authorization": f"Bearer {key}"}))
    for service, headers in started:
        service.wait_ready()
        told = httpx.get(f"{service.url}/openapi.json", headers=headers, timeout=60, trust_env=False)
        found.append(Service(service.url, told.raise_for_status().json()))
    return found


async def there(host: Host, near: ThreadPoolExecutor, count: int) -> tuple[Found, Found, Found]:
    """On the host of the services; strangers are at the other one."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        services = await asyncio.to_thread(engines, stack, host.address)
        async with world(tls=True, host=host.address) as fleet:
            document = (await fleet.http.get("/openapi.json")).raise_for_status().json()
            verify = ssl.create_default_context(cafile=fleet.ca)
            services.append(Service(fleet.server.url, document, verify))
            broker = await fleet.enrol(await fleet.code(), "known")
            called = Found()
            for service in services:
                found = await loop.run_in_executor(near, ask_all, service.url, service.document, service.verify)
                progress(f"{service.url}: {found.calls} calls")
                called = Found(called.calls + found.calls, called.leaks + found.leaks)
            ports = {httpx.URL(service.url).port for service in services} | {broker.port}
            called.leaks += [f"port {port} is open" for port in listening(host) - ports]
            if not await loop.run_in_executor(near, lambda: asyncio.run(gets_in(broker))):
                called.leaks.append("the broker does not let in a device with its certificate")
            at_broker = await loop.run_in_executor(
                near, lambda: asyncio.run(strangers_at_the_broker(broker, fleet.home))
            )
            return called, at_broker, await attack(fleet, count)


def measure(count: int) -> Verdict:
    """`count` tries of a device."""
    with ExitStack() as stack:
        try:
            cable = stack.enter_context(two_hosts())
        except NoNamespaces as reason:
            raise NotRun(str(reason)) from None
        near, far = (stack.enter_context(inside(host)) for host in (cable.device, cable.cloud))
        called, at_broker, tried = far.submit(lambda: asyncio.run(there(cable.cloud, near, count))).result()
    leaks = [*called.leaks, *at_broker.leaks, *tried.leaks]
    figure = (
        f"{called.calls} calls without a key, {at_broker.calls} strangers at the broker, {tried.calls} tries of a device: "
        f"{len(leaks)} got anything"
    )
    return Verdict(figure=figure, passed=not leaks and tried.calls == count, details={"leaks": leaks[:50]})


LINE = Line(
    number=7,
    title="Without a certificate or key nothing but health on any port; a device has its own topics only",
    bar="0",
    count=200,
    small=70,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fleet_7")
