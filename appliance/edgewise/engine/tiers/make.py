"""From an engine's configuration to its tiers, booked in the ledger of host memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgewise.core.log import get_logger
from edgewise.engine.config import EngineConfig
from edgewise.engine.ledger import SHRINK_MARK, Ledger
from edgewise.engine.tiering import PageMover
from edgewise.engine.tiers import folder
from edgewise.engine.tiers.disk import DiskSpec, DiskStore
from edgewise.engine.tiers.host import HostCache
from edgewise.engine.tiers.pages import TieredPages
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.engine.tiers.worker import QUEUE_BYTES, DiskWorker

ARRIVAL_BYTES = 256 << 20
"""Host memory where pages from disk arrive when there is no host tier."""
REMEDY = (
    "raise engine.memory_fraction or engine.memory_budget_bytes, lower engine.kv_memory_bytes, or serve fewer `models`"
)

log = get_logger(__name__)


def wanted_bytes(config: EngineConfig) -> int:
    """Host memory that the configured tiers would like to have."""
    if not _has_disk(config):
        return max(config.host_cache_bytes, config.handover_bytes)
    arrival = config.host_cache_bytes or min(ARRIVAL_BYTES, config.disk_cache_bytes)
    return max(arrival, config.handover_bytes) + QUEUE_BYTES


def make_tiers(
    config: EngineConfig,
    *,
    mover: PageMover,
    ledger: Ledger,
    available: Callable[[], int],
    numeric_class: str,
    page_tokens: int,
    notify: Callable[[str, str], None],
) -> TieredPages | None:
    """The tiers that `config` asks for, their threads started; None if it asks for none.

    They are caches: what does not fit below the 80 % mark of the budget is left out, and the log says so. From then on they
    shrink whenever less than 20 % of the budget is really available.

    Args:
        ledger: Of host memory; changed.
        available: Bytes of host memory to be had now.
        numeric_class: Of the engine.
        notify: Told when the disk tier is switched off and on again.
    """
    wanted = wanted_bytes(config) if config.prefix_cache else 0
    if wanted == 0:
        return None
    size = min(wanted, ledger.room(SHRINK_MARK))
    queue = QUEUE_BYTES if _has_disk(config) else 0
    if size - queue < mover.page_bytes:
        log.warning("cache_tiers_off", wanted_bytes=wanted, room_bytes=size, remedy=REMEDY)
        return None
    if size < wanted:
        log.warning("cache_tiers_smaller", wanted_bytes=wanted, booked_bytes=size, remedy=REMEDY)
    ledger.book("cache_tiers", size)
    host = HostCache(mover.page_bytes, size - queue)
    disk = _disk(config, mover.page_bytes, numeric_class, page_tokens, notify, host) if _has_disk(config) else None
    keep_free = int((1 - SHRINK_MARK) * ledger.budget)
    watch = PressureWatch(host, lambda: keep_free - available())
    watch.start()
    return TieredPages(mover, host, keep=config.host_cache_bytes > 0, disk=disk, watch=watch)


def _has_disk(config: EngineConfig) -> bool:
    return config.disk_cache_dir is not None and config.disk_cache_bytes > 0


def _disk(
    config: EngineConfig,
    page_bytes: int,
    numeric_class: str,
    page_tokens: int,
    notify: Callable[[str, str], None],
    host: HostCache,
) -> DiskWorker:
    spec = DiskSpec(
        root=Path(config.disk_cache_dir or ""),
        limit=config.disk_cache_bytes,
        model=config.model.name,
        model_digest=config.model.digest,
        numeric_class=numeric_class,
        key=folder.key_of(config.model.digest, numeric_class, page_tokens, config.disk_cache_key),
        page_bytes=page_bytes,
    )
    worker = DiskWorker(DiskStore(spec, notify=notify), page_bytes=page_bytes, deliver=host.put)
    worker.start()
    return worker
