"""The part of a service, device or cloud, that hands KV pages over; there is one only where it is configured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastapi import APIRouter

from edgewise.api.context import ANONYMOUS_SALT, key_salt
from edgewise.api.deps import ApiDependencies
from edgewise.core.files import read_secret
from edgewise.core.settings import Settings
from edgewise.engine.pool.pool import EnginePool
from edgewise.models.gate_record import read_record
from edgewise.serving.peers.peer import Peer
from edgewise.serving.peers.routes import pages_router
from edgewise.serving.peers.shown import ShownPages
from edgewise.serving.peers.take import PeerPages


def make_peers(settings: Settings, deps: ApiDependencies, pool: EnginePool) -> Sequence[PeersPart]:
    """One part, or none. Its requests pass the part from now on.

    Raises:
        ConfigError: A key or a certificate cannot be read.
    """
    peers = settings.peers
    if not (peers.serve or peers.urls) or not settings.engine.prefix_cache:
        return ()
    return (PeersPart(settings, deps, pool),)


class PeersPart:
    """Implements `serving.service.Part`."""

    def __init__(self, settings: Settings, deps: ApiDependencies, pool: EnginePool) -> None:
        peers = settings.peers
        keys = dict(_key(text) for text in peers.keys)
        self._deps = deps
        self._serves = peers.serve
        self._shown = ShownPages()
        self._outcomes = deps.metrics.registry.counter(
            "kv_handovers", "Prompts whose KV pages a peer was asked for, by what came of it", ("outcome",)
        )
        self._pages = PeerPages(
            [Peer(url, keys, ca_file=peers.ca_file, now=time.monotonic) for url in peers.urls],
            self._shown if peers.serve else ShownPages(0),
            min_tokens=peers.min_tokens,
            tell=self._tell,
            may_round=partial(_passed, settings.home / "models") if peers.int4 else lambda _: False,
        )
        pool.before_submit = self._pages.before_submit

    @property
    def routers(self) -> Sequence[APIRouter]:
        return (pages_router(self._deps, self._shown),) if self._serves else ()

    def start(self) -> None:
        """Nothing runs by itself."""

    async def stop(self) -> None:
        await asyncio.shield(self._pages.close())

    def _tell(self, outcome: str, message: str) -> None:
        self._outcomes.labels(outcome).inc()
        if message:
            self._deps.events.emit("kv_handover_refused", message, outcome=outcome)


def _passed(store_root: Path, digest: str) -> bool:
    """Whether the model's gate has passed pages that are handed over rounded."""
    gate = read_record(store_root, digest)
    return gate is not None and "int4" in gate.passed("handover")


def _key(text: str) -> tuple[str, str]:
    """Salt of our tenant and its key there."""
    name, _, file = text.partition("=")
    salt = ANONYMOUS_SALT if name == "local" else key_salt(name)
    return salt, read_secret(Path(file).expanduser(), "peers.keys")
