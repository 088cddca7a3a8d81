"""What a fleet service costs and loses with so many devices: the phases of `edgewise bench fleet`, and their figures."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgewise.bench.fleet.device import Behaviour, SimulatedDevice
from edgewise.core.errors import DeadlineExceeded, EngineUnavailable
from edgewise.wire.mqtt.connection import Broker

_TOGETHER = 16
_LOOK_S = 0.5
_YEARS_S = 5 * 365.25 * 86_400

Notify = Callable[[str, int, int], None]
"""Told the phase, what is done and what there is to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Attributes:
    devices: How many.
    period_s: Seconds between two samples of each.
    steady_s: How long the quiet phase takes, in which processor time is measured.
    rough_s: How long links are cut, and clones and repeats come.
    patience_s: Longest time for anything to come about.
    """

    devices: int = 1000
    period_s: float = 10.0
    steady_s: float = 60.0
    rough_s: float = 30.0
    patience_s: float = 600.0
    seed: int = 0


@dataclass(slots=True)
class Figures:
    """What was measured. Times in seconds, memory and growth in bytes; what must be 0 is named `lost` and `doubled`."""

    enrol_s: float = 0.0
    online_s: float = 0.0
    samples: int = 0
    samples_lost: int = 0
    samples_doubled: int = 0
    cpu_percent: float = 0.0
    messages_per_s: float = 0.0
    memory_bytes: int = 0
    growth_bytes_per_device_hour: float = 0.0
    reconnects: int = 0
    wrong_presence: int = 0
    command_s: float = 0.0
    commands_lost: int = 0
    commands_doubled: int = 0
    rollout_s: float = 0.0
    rollout_state: str = ""
    offline_seen: int = 0
    offline_asked: int = 0
    offline_s: float = 0.0

    @property
    def faults(self) -> int:
        """Everything that must not be."""
        lost = self.samples_lost + self.samples_doubled + self.commands_lost + self.commands_doubled
        wrong = self.wrong_presence + abs(self.offline_asked - self.offline_seen)
        return lost + wrong + (self.rollout_state != "succeeded")


@dataclass(slots=True)
class FleetBench:
    """Args:
    url: Of the fleet service; `token` of an admin.
    broker: Where the devices go, without a name.
    database: Its SQLite file, to count what arrived.
    pid: Its process.
    """

    plan: FleetPlan
    url: str
    token: str
    broker: Broker
    database: Path
    pid: int
    notify: Notify = lambda *_: None
    figures: Figures = field(default_factory=Figures)
    _devices: list[SimulatedDevice] = field(default_factory=list)

    async def run(self) -> Figures:
        """All phases, in order."""
        limits = httpx.Limits(max_connections=_TOGETHER)
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(
            base_url=f"{self.url}/fleet/v1", headers=headers, limits=limits, timeout=60
        ) as client:
            try:
                await self._enrol(client)
                await self._connect(client)
                await self._steady()
                await self._rough(client)
                await self._command(client)
                await self._roll_out(client)
                await self._settle()
                await self._leave(client)
            finally:
                await asyncio.gather(*(device.stop() for device in self._devices), return_exceptions=True)
        return self.figures

    # --- phases ----------------------------------------------------------------------------------------------------------

    async def _enrol(self, client: httpx.AsyncClient) -> None:
        """Every device gets a key, a request for a certificate and an account, the way real ones do."""
        began, count = time.monotonic(), self.plan.devices
        code = (await _post(client, "codes", {"uses": count, "auto_accept": True, "ttl_s": 3600}))["code"]
        gate, uids = asyncio.Semaphore(_TOGETHER), []

        async def one(index: int) -> None:
            async with gate:
                csr = await asyncio.to_thread(_request)
                body = {"code": code, "csr": csr, "name": f"sim {index:05d}", "hardware": {"family": "simulated"}}
                uids.append((await _post(client, "enrol", body))["uid"])
                self.notify("enrol", len(uids), count)

        await asyncio.gather(*(one(index) for index in range(count)))
        self.figures.enrol_s = time.monotonic() - began
        for index, uid in enumerate(sorted(uids)):
            broker = Broker(host=self.broker.host, port=self.broker.port, uid=uid)
            behaviour, seed = _behaviour(index), self.plan.seed
            device = SimulatedDevice(broker, behaviour=behaviour, period_s=self.plan.period_s, seed=seed)
            self._devices.append(device)

    async def _connect(self, client: httpx.AsyncClient) -> None:
        began = time.monotonic()
        for device in self._devices:
            device.start()
            await asyncio.sleep(0.002)  # as many as a broker lets in at once
        await self._until("online", lambda: self._count(client, "online"), self.plan.devices)
        self.figures.online_s = time.monotonic() - began

    async def _steady(self) -> None:
        process = psutil.Process(self.pid)
        size, samples = self.database.stat().st_size, self._samples()
        used, began = _processor_s(process), time.monotonic()
        await asyncio.sleep(self.plan.steady_s)
        seconds = time.monotonic() - began
        sent = self._samples() - samples
        self.figures.cpu_percent = 100 * (_processor_s(process) - used) / seconds
        self.figures.messages_per_s = sent / seconds
        self.figures.memory_bytes = process.memory_info().rss
        grown = self.database.stat().st_size - size
        self.figures.growth_bytes_per_device_hour = grown / self.plan.devices / seconds * 3600

    async def _rough(self, client: httpx.AsyncClient) -> None:
        """Links break, and devices come twice; then everything must be as it was."""
        chance = random.Random(self.plan.seed)  # noqa: S311 - which links are cut
        before = sum(device.tally.connects for device in self._devices)
        end = time.monotonic() + self.plan.rough_s
        while time.monotonic() < end:
            for device in chance.sample(self._devices, max(1, len(self._devices) // 50)):
                device.cut()
            twin = chance.choice(self._devices)
            clone = SimulatedDevice(Broker(host=self.broker.host, port=self.broker.port, uid=twin.uid), period_s=0)
            clone.start()
            await asyncio.sleep(1.0)
            clone.kill()
        await self._until("online again", lambda: self._count(client, "online"), self.plan.devices)
        self.figures.reconnects = sum(device.tally.connects for device in self._devices) - before
        counts = (await _get(client, "devices/counts")).items()
        self.figures.wrong_presence = sum(count for state, count in counts if state not in ("online",))

    async def _command(self, client: httpx.AsyncClient) -> None:
        began, count = time.monotonic(), self.plan.devices
        sent = await _post(client, "commands", {"query": "", "op": "ping", "ttl_s": 600})
        batch = sent[0]["batch_id"]

        async def ended() -> int:
            page = await _get(client, "commands", batch_id=batch, state="succeeded", limit=1)
            return int(page["total"])

        await self._until("commands", ended, count, fail=False)
        self.figures.command_s = time.monotonic() - began
        self.figures.commands_lost = count - await ended()
        self.figures.commands_doubled = sum(
            times > 1 for device in self._devices for times in device.tally.effects.values()
        )

    async def _roll_out(self, client: httpx.AsyncClient) -> None:
        began = time.monotonic()
        stages = [{"percent": percent, "bake_s": 1, "deadline_s": self.plan.patience_s} for percent in (1, 10, 100)]
        body = {
            **{"name": "bench", "shadow": "config", "document": {"placement.policy": "prefer-local"}, "query": ""},
            **{"plan": {"stages": stages}, "start": True},
        }
        rollout = (await _post(client, "rollouts", body))["id"]
        state: dict[str, Any] = {}

        async def done() -> int:
            nonlocal state
            state = await _get(client, f"rollouts/{rollout}")
            over = state["state"] not in ("running", "rolling-back")
            return self.plan.devices if over else int(state["counts"].get("succeeded", 0))

        await self._until("rollout", done, self.plan.devices, fail=False)
        self.figures.rollout_s = time.monotonic() - began
        self.figures.rollout_state = state["state"]

    async def _settle(self) -> None:
        """No more samples; what is on its way arrives."""
        for device in self._devices:
            device.quiet()

        async def settled() -> int:
            return sum(device.waiting == 0 for device in self._devices)

        await self._until("settle", settled, self.plan.devices, fail=False)
        self.figures.samples = self._samples()
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            stored = int(connection.execute("SELECT count(*) FROM samples").fetchone()[0])
        self.figures.samples_lost = max(0, self.figures.samples - stored)
        self.figures.samples_doubled = max(0, stored - self.figures.samples)

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """A tenth goes without a word."""
        began = time.monotonic()
        gone = self._devices[:: max(1, len(self._devices) // max(1, self.plan.devices // 10))]
        for device in gone:
            device.kill()
        self.figures.offline_asked = len(gone)
        await self._until("offline", lambda: self._count(client, "offline"), len(gone), fail=False)
        self.figures.offline_s = time.monotonic() - began
        self.figures.offline_seen = await self._count(client, "offline")

    # --- looking ---------------------------------------------------------------------------------------------------------

    def _samples(self) -> int:
        return sum(device.tally.samples for device in self._devices)

    async def _count(self, client: httpx.AsyncClient, state: str) -> int:
        return int((await _get(client, "devices/counts")).get(state, 0))

    async def _until(self, phase: str, count: Callable[[], Awaitable[int]], whole: int, *, fail: bool = True) -> None:
        end = time.monotonic() + self.plan.patience_s
        while (done := await count()) < whole:
            self.notify(phase, done, whole)
            if time.monotonic() > end:
                if fail:
                    raise DeadlineExceeded(f"{phase}: {done} of {whole} devices after {self.plan.patience_s:g} s.")
                return
            await asyncio.sleep(_LOOK_S)
        self.notify(phase, whole, whole)


def _behaviour(index: int) -> Behaviour:
    """One in ten is slow, one in ten says everything twice, one in ten has a clock that is five years off."""
    kind = index % 10
    clock_s = {2: _YEARS_S, 3: -_YEARS_S}.get(kind, 0.0)
    return Behaviour(slow_s=3.0 if kind == 0 else 0.0, duplicates=kind == 1, clock_s=clock_s)


def _request() -> str:
    """A request for a certificate with a fresh key, which is forgotten: the broker of one machine asks for none."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulated")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.PEM).decode()


def _processor_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


async def _get(client: httpx.AsyncClient, path: str, **params: str | int) -> Any:
    return _read(await client.get(path, params=params))


async def _post(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Any:
    return _read(await client.post(path, json=dict(body)))


def _read(response: httpx.Response) -> Any:
    if response.is_error:
        raise EngineUnavailable(f"The fleet service answered {response.status_code}: {response.text[:300]}")
    return response.json()


def rows(plan: FleetPlan, figures: Figures) -> Sequence[tuple[str, str]]:
    """The table for people."""
    ran = f"{figures.samples:,} sent, {figures.samples_lost} lost, {figures.samples_doubled} doubled"
    commands = f"{figures.command_s:.1f} s, {figures.commands_lost} lost, {figures.commands_doubled} done twice"
    return (
        ("devices", f"{plan.devices:,}, a sample every {plan.period_s:g} s each"),
        ("enrolled in", f"{figures.enrol_s:.1f} s"),
        ("all online after", f"{figures.online_s:.1f} s"),
        ("telemetry", ran),
        (
            "processor of service and broker",
            f"{figures.cpu_percent:.0f} % of a core at {figures.messages_per_s:.0f} samples/s",
        ),
        ("memory", f"{figures.memory_bytes / 2**20:.0f} MiB"),
        ("database growth", f"{figures.growth_bytes_per_device_hour / 2**10:.1f} KiB an hour and device"),
        ("links cut and made again", f"{figures.reconnects:,}; wrong presence afterwards: {figures.wrong_presence}"),
        ("a command to all", commands),
        ("a rollout to all in three stages", f"{figures.rollout_s:.1f} s, {figures.rollout_state}"),
        ("a tenth gone", f"{figures.offline_seen} of {figures.offline_asked} seen after {figures.offline_s:.1f} s"),
    )
