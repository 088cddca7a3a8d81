"""Builds an engine in its own process: read the configuration, see what fits, book it, load, allocate, check the kernels."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import cast

import torch

from edgewise.core.errors import ConfigError, OutOfMemory
from edgewise.core.log import get_logger
from edgewise.engine.adapters import Adapters
from edgewise.engine.ahead import AheadRunner, Looping
from edgewise.engine.api import EngineInfo
from edgewise.engine.config import EngineConfig, for_adapters
from edgewise.engine.constraint import Constraints
from edgewise.engine.core import ProgressSink
from edgewise.engine.devices import place
from edgewise.engine.devices.group import DeviceGroup
from edgewise.engine.devices.loading import load_shares
from edgewise.engine.devices.mover import AnyPageMover, movers
from edgewise.engine.devices.runner import LeadingRunner
from edgewise.engine.devices.shares import share_of
from edgewise.engine.draft_loading import load_draft
from edgewise.engine.drafting import DraftPlan, plan_draft, why_no_guesses
from edgewise.engine.encoder_cache import EncoderCache
from edgewise.engine.encoders.climbs import start_climb
from edgewise.engine.engine import Engine
from edgewise.engine.fit import FitReport, fit
from edgewise.engine.found import available_on, device_family, device_name, shares_host_memory
from edgewise.engine.handover import HandOver
from edgewise.engine.kernel_plan import launches_for
from edgewise.engine.kv_cache import allocate
from edgewise.engine.ledger import SHRINK_MARK, Ledger, available_memory
from edgewise.engine.networks import (
    LoadedNetwork,
    cache_variant,
    describe,
    load_network,
    media_kinds,
    media_width,
    recording_tokens,
)
from edgewise.engine.notices import Notices
from edgewise.engine.numerics import Numerics, numeric_class, resolve
from edgewise.engine.pacing import Pacer
from edgewise.engine.pages import PagePool
from edgewise.engine.rungs import encoder_class, with_ladder
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Scheduler
from edgewise.engine.senses import Senses
from edgewise.engine.speculation.speculator import Speculator
from edgewise.engine.spill import SpillSpace
from edgewise.engine.tiering import PageMover, PageTiers
from edgewise.engine.tiers.folder import key_of
from edgewise.engine.tiers.int4 import Int4Pages
from edgewise.engine.tiers.make import make_tiers, wanted_bytes
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.kernels.limits import PRODUCT_ROW_MULTIPLE, round_up
from edgewise.kernels.linear import tiles_invariant
from edgewise.kernels.native import library
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.multimodal.protocol import MultimodalNetwork

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine that can answer, and what it was built of."""

    engine: Engine
    runner: Runner
    network: NetworkConfig
    loaded: LoadedNetwork
    numerics: Numerics
    device: torch.device
    ledger: Ledger


def build(config: EngineConfig, progress: ProgressSink) -> Engine:
    """See `build_parts`."""
    return build_parts(config, progress).engine


def build_parts(config: EngineConfig, progress: ProgressSink) -> Built:
    """Load the model of `config` and return an engine that can answer.

    Args:
        config: What to build.
        progress: Called with a phase ("fit", "weights", "check") and its share done in [0, 1].

    Raises:
        OutOfMemory: It does not fit; nothing has been loaded then.
        BadModelFile, UnsupportedModel, ConfigError: As their names say.
    """
    if config.tensor_parallel == 1:
        return _build_parts(config, progress, None)
    group = DeviceGroup(config.tensor_parallel)
    try:
        return _build_parts(config, progress, group)
    except BaseException:
        group.close()
        raise


def _build_parts(config: EngineConfig, progress: ProgressSink, group: DeviceGroup | None) -> Built:
    """`build_parts` of the devices of `group`, or of one."""
    began = time.monotonic()
    config = for_adapters(config, cuda=torch.cuda.is_available())
    network = describe(config.model, max_context=config.max_context)
    numerics = _numerics(config, network)
    threads = _threads(config, numerics)
    native = _set_threads(threads, numerics, network)
    device = torch.device(numerics.device) if group is None else place.device_of(numerics.device, 0)
    progress("fit", 0.0)
    plan = plan_draft(config, network, numerics)
    report = _fit(config, network, numerics, device, plan)
    ledger = _book(report, device)
    dtype: torch.dtype = getattr(torch, numerics.dtype)
    launches = launches_for(config, network, numerics, device, lambda done, what: progress(f"tune: {what}", done))
    decoder: LoadedNetwork
    if group is None:
        decoder = load_network(
            config.model,
            network,
            device=device,
            dtype=dtype,
            progress=lambda done: progress("weights", done),
            native=native,
            card=numerics.quantize if numerics.kernels == "triton" else None,
            launches=launches.document,
        )
    else:
        sizes = {"num_pages": report.num_pages, "threads": threads}
        decoder = load_shares(
            config, network, numerics, group, progress=lambda done: progress("weights", done), **sizes
        )
    share = share_of(network, config.tensor_parallel)
    kv = allocate(share, num_pages=report.num_pages, kv_dtype=numerics.kv_dtype, dtype=numerics.dtype, device=device)
    pacer = Pacer(max_step_tokens=config.max_step_tokens, idle_step_s=config.prefill_step_s)
    progress("check", 0.0)
    info = _info(
        config,
        report,
        device,
        network=network,
        threads=threads,
        invariant=_proven(decoder, group) and (native is not None or tiles_invariant(device)),
        began=began,
        launches=launches.label,
    )
    _log_choices(numerics, threads)
    notices = Notices()
    mover, rounder = movers(kv, share, group)
    host_ledger = _host_ledger(config, device, ledger)
    tiers = make_tiers(
        config,
        mover=mover,
        ledger=host_ledger,
        available=available_memory,
        numeric_class=info.numeric_class,
        page_tokens=PAGE_TOKENS,
        notify=notices.put,
    )
    senses = _senses(config, network, decoder, ledger, device, dtype, threads)
    speculator = _speculator(config, network, info, plan, ledger)
    spill = _spill(config, report, host_ledger, mover)
    start_climb(senses, ledger, notices)
    looping = isinstance(decoder, Looping)
    scheduler = _scheduler(config, report, pacer, tiers, spill, senses, speculator, answers_apart=looping)
    runner = _runner(config, report, decoder, kv, device, group)
    engine = Engine(
        _with_pages(info, config, network, mover, rounder),
        scheduler=scheduler,
        runner=runner,
        pacer=pacer,
        ledger=ledger,
        tiers=tiers,
        notices=notices,
        hand_over=HandOver(scheduler.pages, tiers, mover, rounder),
        senses=senses,
        adapters=_adapters(report, network, decoder, group),
        speculator=speculator,
        recording_tokens=recording_tokens(network),
        devices=group,
    )
    return Built(engine, runner, network, decoder, numerics, device, ledger)


def _numerics(config: EngineConfig, network: NetworkConfig) -> Numerics:
    """What "auto" means here. Raises `ConfigError` where there are fewer devices than asked for, too."""
    cuda = torch.cuda.is_available()
    numerics = resolve(
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        quantize=config.quantize,
        cuda=cuda,
        capability=torch.cuda.get_device_capability() if cuda else None,
        measured_kv=config.measured_kv,
        failed_weights=config.failed_weights,
        kernels=config.kernels,
        network=network,
        devices=config.tensor_parallel,
    )
    place.require_devices(numerics.device, config.tensor_parallel)
    return numerics


def _threads(config: EngineConfig, numerics: Numerics) -> int:
    """Of this process; those of a CPU's devices share its cores."""
    threads = config.threads or len(os.sched_getaffinity(0))
    return max(1, threads // config.tensor_parallel) if numerics.device == "cpu" else threads


def _proven(decoder: LoadedNetwork, group: DeviceGroup | None) -> bool:
    """Whether a token's bits do not depend on the batch; from then on the devices of a group exchange results."""
    proven = decoder.prove_rows()
    return proven if group is None else group.join(cast("Decoder", decoder).rows)


def _runner(
    config: EngineConfig,
    report: FitReport,
    decoder: LoadedNetwork,
    kv: list[KVLayer],
    device: torch.device,
    group: DeviceGroup | None,
) -> Runner:
    constraints = Constraints(config.vocabulary)
    if group is not None:
        return LeadingRunner(decoder, kv, device, group, constraints)
    if not isinstance(decoder, Looping):
        return Runner(decoder, kv, device, constraints)
    pages = -(-report.max_context // PAGE_TOKENS)
    loop = decoder.loop(kv, max_rows=config.max_running, max_pages=pages)
    return AheadRunner(decoder, kv, device, loop, constraints)


def _set_threads(threads: int, numerics: Numerics, network: NetworkConfig) -> Quantize | None:
    """The threads that compute: torch's, or the native pool, beside which torch's own would only take its cores away. torch
    keeps them where it sees or hears: that is done between steps, and the pool sleeps meanwhile.

    Returns:
        How weights are packed for the native kernels; None for the reference kernels.
    """
    if numerics.kernels != "native":
        torch.set_num_threads(threads)
        return None
    torch.set_num_threads(threads if media_kinds(network) else 1)
    if threads > library.MAX_THREADS:
        log.warning("threads_limited", wanted=threads, used=library.MAX_THREADS, reason="native kernels take no more")
    threads = min(threads, library.MAX_THREADS)
    library.set_threads(threads)
    if library.threads() < threads:
        remedy = "lower engine.threads, or raise TasksMax of the systemd unit or --pids-limit of the container"
        log.warning(
            "threads_limited", wanted=threads, used=library.threads(), reason="no more could be made", remedy=remedy
        )
    return numerics.quantize


def _log_choices(numerics: Numerics, threads: int) -> None:
    isa = None
    if numerics.kernels == "native":
        isa, threads = library.isa(), library.threads()
    say = log.warning if numerics.lacking else log.info
    say("kernels_chosen", kernels=numerics.kernels, isa=isa, threads=threads, lacking=numerics.lacking or None)
    for choice in numerics.why:
        log.info("numerics_chosen", choice=choice)


def _fit(
    config: EngineConfig, network: NetworkConfig, numerics: Numerics, device: torch.device, draft: DraftPlan | None
) -> FitReport:
    report = fit(
        network,
        numerics,
        available=available_on(device, config.tensor_parallel),
        memory_fraction=config.memory_fraction,
        kv_memory_bytes=config.kv_memory_bytes,
        max_context=config.max_context,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        page_tokens=PAGE_TOKENS,
        memory_budget_bytes=config.memory_budget_bytes,
        tier_bytes=wanted_bytes(config) if shares_host_memory(device) else 0,
        encoder_cache_bytes=config.encoder_cache_bytes + config.encoder_form_bytes,
        adapter_bytes=config.adapter_bytes if config.adapters else 0,
        draft_bytes=0 if draft is None else draft.nbytes,
        devices=config.tensor_parallel,
    )
    if not report.fits:
        # A cache that is asked for and too small is a mistake that no freed memory mends.
        mistake = config.kv_memory_bytes is not None and report.cache_too_small
        raise (ConfigError if mistake else OutOfMemory)(f"{config.model.name} does not fit: {report.reason}.")
    return report


def _book(report: FitReport, device: torch.device) -> Ledger:
    ledger = Ledger(report.budget, lambda: available_on(device))
    ledger.book("weights", report.weights)
    ledger.book("workspace", report.workspace)
    if report.media:
        ledger.book("encoder_cache", report.media)
    for purpose, size in (("adapters", report.adapters), ("draft", report.draft), ("graphs", report.graphs)):
        if size:
            ledger.book(purpose, size)
    ledger.book("kv_cache", report.kv)
    return ledger


def _host_ledger(config: EngineConfig, device: torch.device, ledger: Ledger) -> Ledger:
    """Of host memory: the same ledger where the device has no memory of its own."""
    if shares_host_memory(device):
        return ledger
    return Ledger(int(available_memory() * config.memory_fraction), available_memory)


def _senses(
    config: EngineConfig,
    network: NetworkConfig,
    loaded: LoadedNetwork,
    ledger: Ledger,
    device: torch.device,
    dtype: torch.dtype,
    threads: int,
) -> Senses | None:
    """The encoder of a model that takes media, and the cache of its rows, which shrinks when memory is scarce."""
    width = media_width(network)
    if not width:
        return None
    cache = EncoderCache(config.encoder_cache_bytes, width * dtype.itemsize)
    keep_free = int((1 - SHRINK_MARK) * ledger.budget)
    watch = PressureWatch(cache, lambda: keep_free - available_on(device))
    watch.start()
    plain = cast("MultimodalNetwork", loaded).encoder
    encoder = with_ladder(plain, config, ledger, device=device, dtype=dtype, threads=threads)
    return Senses(encoder, cache, device, max_content=config.media_bytes, watch=watch)


def _spill(config: EngineConfig, report: FitReport, ledger: Ledger, mover: PageMover) -> SpillSpace:
    """Host memory for preempted requests, booked: what is asked for or the size of the cache, as far as there is room."""
    wanted = report.kv if config.spill_bytes is None else config.spill_bytes
    room = ledger.room() // 2 if config.spill_bytes is None else ledger.room()
    size = min(wanted, room)
    if config.spill_bytes is not None and size < wanted:
        log.warning(
            "spill_smaller", wanted_bytes=wanted, booked_bytes=size, remedy="free memory or lower kv_memory_bytes"
        )
    ledger.book("spill", size)
    return SpillSpace(mover, size)


def _scheduler(
    config: EngineConfig,
    report: FitReport,
    pacer: Pacer,
    tiers: PageTiers | None,
    spill: SpillSpace,
    senses: Senses | None,
    speculator: Speculator | None,
    *,
    answers_apart: bool,
) -> Scheduler:
    return Scheduler(
        PagePool(report.num_pages, keep_cached=config.prefix_cache, tiers=tiers, spill=spill),
        page_tokens=PAGE_TOKENS,
        max_context=report.max_context,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        pacer=pacer,
        now=time.monotonic,
        ageing_s=config.ageing_s,
        tiers=tiers,
        rows=senses,
        speculator=speculator,
        # What the workspace has room for: logits of so many rows, activations of so many tokens.
        max_rows=min(round_up(config.max_running, PRODUCT_ROW_MULTIPLE), config.max_step_tokens + config.max_running),
        answers_apart=answers_apart,
    )


def _adapters(
    report: FitReport, network: NetworkConfig, decoder: LoadedNetwork, group: DeviceGroup | None
) -> Adapters | None:
    """None where none are asked for, or the kernels compute none."""
    if not report.adapters or not isinstance(network, DecoderConfig):
        return None
    if isinstance(decoder, NativeDecoder):
        return Adapters(network, decoder.dtype, decoder.device, report.adapters, native=decoder)
    if not isinstance(decoder, Decoder):
        return None
    together = 1 if group is None or decoder.device.type != "cpu" else group.size
    return Adapters(network, decoder.dtype, decoder.device, report.adapters, group=group, together=together)


def _speculator(
    config: EngineConfig, network: NetworkConfig, info: EngineInfo, plan: DraftPlan | None, ledger: Ledger
) -> Speculator | None:
    """None where it is off, or cannot be: where a token's bits depend on what is computed beside it, so would the answer. What
    was booked for a draft model is free again then."""
    if config.speculation == "off":
        return None
    reason = why_no_guesses(config, network, info.kernels)
    if not reason and not info.batch_invariant:
        reason = "on this machine a token's bits depend on what is computed beside it"
    if reason:
        log.info("speculation_off", reason=reason)
        ledger.free("draft")
        return None
    draft = None if plan is None else load_draft(config, plan)
    return Speculator(draft=draft, always=config.speculation in ("lookup", "draft"))


def _info(
    config: EngineConfig,
    report: FitReport,
    device: torch.device,
    *,
    network: NetworkConfig,
    threads: int,
    invariant: bool,
    began: float,
    launches: str,
) -> EngineInfo:
    numerics = report.numerics
    return EngineInfo(
        model=config.model.name,
        digest=config.model.digest,
        vocab_size=network.vocab_size,
        max_context=report.max_context,
        dtype=numerics.dtype,
        kv_dtype=numerics.kv_dtype,
        quantize=numerics.quantize,
        device=device_name(device),
        numeric_class=numeric_class(
            numerics,
            torch_version=torch.__version__,
            device_family=device_family(device),
            threads=threads,
            kv_format="-".join(filter(None, (report.kv_format, cache_variant(network)))),
            media=bool(media_kinds(network)),
            devices=config.tensor_parallel,
            launches=launches,
        )
        + encoder_class(config, device),
        kernels=numerics.kernels,
        kernels_lacking=numerics.lacking,
        devices=config.tensor_parallel,
        batch_invariant=invariant,
        num_pages=report.num_pages,
        page_tokens=PAGE_TOKENS,
        load_s=time.monotonic() - began,
        pid=os.getpid(),
    )


def _with_pages(
    info: EngineInfo,
    config: EngineConfig,
    network: NetworkConfig,
    mover: AnyPageMover,
    rounder: Int4Pages,
) -> EngineInfo:
    """With what is known once there are pages."""
    return replace(
        info,
        kv_fingerprint=_kv_fingerprint(config, info, mover),
        kv_page_bytes=mover.page_bytes,
        kv_int4_page_bytes=rounder.page_bytes,
        media=media_kinds(network),
        model_context=network.max_position,
    )


def _kv_fingerprint(config: EngineConfig, info: EngineInfo, mover: AnyPageMover) -> str:
    """See `EngineInfo`. Rotary positions are part of the weights' configuration, which the model's digest covers."""
    key = key_of(config.model.digest, info.numeric_class, PAGE_TOKENS, config.disk_cache_key)
    return hashlib.sha256("\n".join((key, sys.byteorder, mover.layout)).encode()).hexdigest()
