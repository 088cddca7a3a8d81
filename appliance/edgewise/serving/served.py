"""From a model's name in the store to something the pipeline can ask: tokenizer, template, and how its engine is built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgewise.core.errors import BadModelFile, ConfigError, EdgewiseError, TemplateFailed
from edgewise.core.log import get_logger
from edgewise.core.settings import Settings
from edgewise.engine.api import Engine
from edgewise.engine.config import EngineConfig
from edgewise.engine.devices.shares import share_of
from edgewise.engine.drafting import plan_draft
from edgewise.engine.fit import Needs, fit
from edgewise.engine.fit import needs as needs_of
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import Numerics, resolve
from edgewise.engine.tiers.make import wanted_bytes
from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.catalog import SETS
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.files import ModelFiles
from edgewise.models.gate_record import read_record
from edgewise.models.longtail.estimate import read_network
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Layout
from edgewise.models.sampling import recommended_sampling
from edgewise.models.store import Store
from edgewise.models.templates import ChatTemplate, load_template
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.models.weights.gguf import GGUFHeader, header_of
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.structured.vocabulary import vocabulary_of

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """What was read of a model's files; `needs` says with how much memory it can be loaded."""

    config: EngineConfig
    tokenizer: Tokenizer
    template: ChatTemplate | None
    needs: Needs
    created: int
    sampling: Mapping[str, float]
    layout: Layout | None = None

    def served(self, engine: Engine, aliases: tuple[str, ...]) -> ServedModel:
        files = self.config.model
        return ServedModel(
            name=files.name,
            aliases=aliases,
            tokenizer=self.tokenizer,
            template=self.template,
            engine=engine,
            max_context=self.needs.context,
            digest=files.digest,
            created=self.created,
            sampling=self.sampling,
            files=None if self.layout is None else files,
            layout=self.layout,
        )

    def close(self) -> None:
        """End the process that renders its chat template."""
        if self.template is not None:
            self.template.close()


def engine_config(settings: Settings, files: ModelFiles) -> EngineConfig:
    """The engine's part of the settings."""
    engine = settings.engine
    return EngineConfig(
        model=files,
        device=engine.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        kernels=engine.kernels,
        kernel_tuning=engine.kernel_tuning,
        kernel_cache_dir=str(settings.home / "kernels"),
        max_context=engine.max_context,
        kv_memory_bytes=engine.kv_memory_bytes,
        memory_fraction=engine.memory_fraction,
        max_running=engine.max_running,
        max_waiting=engine.max_waiting,
        max_step_tokens=engine.max_step_tokens,
        threads=engine.threads,
        prefix_cache=engine.prefix_cache,
        prefill_step_s=engine.prefill_step_s,
        ageing_s=engine.ageing_s,
        speculation=engine.speculation,
        tensor_parallel=engine.devices,
        adapter_bytes=engine.adapter_bytes,
        spill_bytes=engine.spill_bytes,
        encoder_cache_bytes=engine.encoder_cache_bytes,
        media_bytes=engine.media_bytes,
        host_cache_bytes=engine.host_cache_bytes or 0,
        disk_cache_dir=str(settings.kv_cache_dir) if engine.disk_cache_bytes else None,
        disk_cache_bytes=engine.disk_cache_bytes or 0,
        handover_bytes=settings.peers.memory_bytes if settings.peers.urls else 0,
        turns=str(settings.home / "engine-turns"),
        stream_interval_s=engine.stream_interval_s,
    )


def read_model(
    settings: Settings,
    store: Store,
    name: str,
    machine: Machine,
    changed: Callable[[EngineConfig], EngineConfig] = lambda config: config,
) -> ReadModel:
    """Read a model's header, tokenizer and template, and compute its size. Takes up to seconds: call it in a thread.

    Args:
        machine: `available` is what can be had for this model at most.
        changed: What the engine's configuration is made to be.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel, ConfigError: Why it cannot be served.
    """
    files = store.resolve(name)
    try:
        return _read(settings, store, files, machine, changed)
    except BadModelFile as error:
        raise with_remedy(error, files.name) from error


def with_remedy(error: EdgewiseError, model: str) -> EdgewiseError:
    """The same error; if a file is damaged, with what mends it."""
    if not isinstance(error, BadModelFile) or "`edgewise models" in error.message:
        return error
    remedy = f"`edgewise models verify {model}` checks every file; pull or import the model again if one is damaged."
    return type(error)(f"{error.message.rstrip('.')}. {remedy}", param=error.param)


def _read(
    settings: Settings,
    store: Store,
    files: ModelFiles,
    machine: Machine,
    changed: Callable[[EngineConfig], EngineConfig],
) -> ReadModel:
    header = header_of(files) if files.format == "gguf" else None
    tokenizer = load_tokenizer(files, header)
    template = _template(files, tokenizer, header)
    gate = read_record(store.root, files.digest)
    config = replace(
        engine_config(settings, files),
        measured_kv=None if gate is None else tuple(sorted(gate.passed("kv"))),
        failed_weights=() if gate is None else tuple(sorted(gate.failed("weights"))),
        vocabulary=vocabulary_of(tokenizer),
        disk_cache_key=_disk_cache_key(files, template),
    )
    network = read_network(files, header)
    config = changed(replace(config, draft=_draft(settings, store, files, tokenizer, network)))
    if not _is_first(settings, files):
        config = _divisible(_computable(config, network, machine), network)
    needs = model_needs(config, network, machine)
    manifest = store.manifest(files.name)
    return ReadModel(
        config=config,
        tokenizer=tokenizer,
        template=template,
        needs=needs,
        created=manifest.installed_seconds,
        sampling=manifest.info.sampling or recommended_sampling(files),
        layout=read_layout(files),
    )


def _draft(
    settings: Settings, store: Store, files: ModelFiles, tokenizer: Tokenizer, network: NetworkConfig
) -> ModelFiles | None:
    """The model that guesses for this one; None for none, and for models of another vocabulary than the one that is served first.

    Raises:
        ConfigError: It was set for the model that is served first, and writes other tokens.
        ModelNotFound: It is not installed.
    """
    name = settings.engine.draft_model
    if name is None and settings.engine.speculation == "draft":
        raise ConfigError("'engine.speculation' is draft: set engine.draft_model too.", param="engine.draft_model")
    if name is None or settings.engine.speculation in ("off", "lookup"):
        return None
    draft = store.resolve(name)
    if draft.name == files.name:
        return None
    header = header_of(draft) if draft.format == "gguf" else None
    difference = "other tokens than"
    if _tokens(load_tokenizer(draft, header)) == _tokens(tokenizer):
        # The same tokens may be padded to different sizes.
        size = read_network(draft, header).vocab_size
        if size == network.vocab_size:
            return draft
        difference = f"a vocabulary of {size} where {network.vocab_size} are in"
    reason = f"'engine.draft_model' {name} has {difference} {files.name}: a draft model needs the same vocabulary."
    if store.resolve(settings.model).name == files.name:
        raise ConfigError(reason, param="engine.draft_model")
    log.warning("draft_model_not_used", model=files.name, draft=name, reason="it has another vocabulary")
    return None


def _is_first(settings: Settings, files: ModelFiles) -> bool:
    """Whether it is the model that is served first, for which settings must hold as they are."""
    return files.name in SETS.get(settings.model, (settings.model,))


def _computable(config: EngineConfig, network: NetworkConfig, machine: Machine) -> EngineConfig:
    """With kernels and weights left to "auto" where those that are set by name do not compute this model."""
    try:
        _numerics(config, network, machine)
    except ConfigError as error:
        if config.kernels == "reference" or error.param not in ("engine.kernels", "quantize"):
            raise
        log.warning("kernels_not_used", model=config.model.name, reason=error.message)
        return replace(config, kernels="auto", quantize="auto")
    return config


def _divisible(config: EngineConfig, network: NetworkConfig) -> EngineConfig:
    """On one device where the number that is set cannot compute this model together."""
    try:
        share_of(network, config.tensor_parallel)
    except ConfigError as error:
        log.warning("tensor_parallel_not_used", model=config.model.name, reason=error.message)
        return replace(config, tensor_parallel=1)
    return config


def _tokens(tokenizer: Tokenizer) -> list[tuple[bytes, bool]]:
    ids = range(tokenizer.vocab_size)
    return [(tokenizer.token_bytes(id), tokenizer.is_special(id)) for id in ids]


def model_needs(config: EngineConfig, network: NetworkConfig, machine: Machine) -> Needs:
    """The memory budgets that are of use to a model, by the sum that its engine will make."""
    numerics = _numerics(config, network, machine)
    draft = plan_draft(config, network, numerics)
    report = fit(
        network,
        numerics,
        available=machine.available,
        memory_fraction=config.memory_fraction,
        kv_memory_bytes=config.kv_memory_bytes,
        max_context=config.max_context,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        page_tokens=PAGE_TOKENS,
        memory_budget_bytes=machine.available,
        encoder_cache_bytes=config.encoder_cache_bytes + config.encoder_form_bytes,
        adapter_bytes=config.adapter_bytes if config.adapters else 0,
        draft_bytes=0 if draft is None else draft.nbytes,
        devices=config.tensor_parallel,
    )
    shared = numerics.device == "cpu"
    return needs_of(
        report,
        max_context=config.max_context,
        max_running=config.max_running,
        kv_memory_bytes=config.kv_memory_bytes,
        tier_bytes=wanted_bytes(config) if shared else 0,
    )


def _numerics(config: EngineConfig, network: NetworkConfig, machine: Machine) -> Numerics:
    """What its engine will find. Raises `ConfigError`."""
    return resolve(
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        quantize=config.quantize,
        cuda=machine.cuda,
        capability=machine.capability,
        measured_kv=config.measured_kv,
        failed_weights=config.failed_weights,
        kernels=config.kernels,
        network=network,
        devices=config.tensor_parallel,
    )


def _disk_cache_key(files: ModelFiles, template: ChatTemplate | None) -> str:
    """Digest of what turns messages into tokens. The model's digest covers all its files, the tokenizer's among them; a chat
    template may come from elsewhere."""
    sources = {} if template is None else template.sources
    return hashlib.blake2b(json.dumps([files.digest, sources], sort_keys=True).encode(), digest_size=16).hexdigest()


def _template(files: ModelFiles, tokenizer: Tokenizer, header: GGUFHeader | None) -> ChatTemplate | None:
    """None for a model without a chat template: it serves completions, and chat is refused by name."""
    try:
        return load_template(files, tokenizer, header)
    except TemplateFailed as error:
        log.warning("no_chat_template", model=files.name, reason=error.message, effect="it answers completions only")
        return None
