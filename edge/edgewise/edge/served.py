"""From a model's name in the store to something the pipeline can ask: tokenizer, template, engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgewise.core.errors import BadModelFile, EdgewiseError, TemplateFailed
from edgewise.core.log import get_logger
from edgewise.core.settings import Settings
from edgewise.engine.client import EngineClient
from edgewise.engine.config import EngineConfig
from edgewise.engine.events import EngineEvent
from edgewise.models.catalog import SETS
from edgewise.models.decoder.config import read_config
from edgewise.models.files import ModelFiles
from edgewise.models.sampling import recommended_sampling
from edgewise.models.store import Store
from edgewise.models.templates import ChatTemplate, load_template
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.models.weights.gguf import GGUFHeader, header_of
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.structured.vocabulary import vocabulary_of

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model with the processes that belong to it: its engine and the one that renders its chat template."""

    served: ServedModel
    engine: EngineClient
    template: ChatTemplate | None

    async def close(self) -> None:
        await self.engine.stop()
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
        spill_bytes=engine.spill_bytes,
    )


def open_model(settings: Settings, on_event: Callable[[EngineEvent], None]) -> OpenModel:
    """Resolve `settings.model` and prepare to serve it; the engine is not started yet.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel, ConfigError: Why it cannot be served; nothing is running then.
    """
    store = Store(settings.home / "models")
    files = store.resolve(settings.model)
    try:
        return _open(settings, store, files, on_event)
    except BadModelFile as error:
        raise with_remedy(error, files.name) from error


def with_remedy(error: EdgewiseError, model: str) -> EdgewiseError:
    """The same error; if a file is damaged, with what mends it."""
    if not isinstance(error, BadModelFile) or "`edgewise models" in error.message:
        return error
    remedy = f"`edgewise models verify {model}` checks every file; pull or import the model again if one is damaged."
    return type(error)(f"{error.message.rstrip('.')}. {remedy}", param=error.param)


def _open(settings: Settings, store: Store, files: ModelFiles, on_event: Callable[[EngineEvent], None]) -> OpenModel:
    header = header_of(files) if files.format == "gguf" else None
    tokenizer = load_tokenizer(files, header)
    config = replace(engine_config(settings, files), vocabulary=vocabulary_of(tokenizer))
    client = EngineClient(config, on_event=on_event)
    template = _template(files, tokenizer, header)
    manifest = store.manifest(files.name)
    served = ServedModel(
        name=files.name,
        aliases=_aliases(settings.model, files.name),
        tokenizer=tokenizer,
        template=template,
        engine=client,
        max_context=read_config(files, header).max_position,
        digest=files.digest,
        created=manifest.installed_seconds,
        sampling=manifest.info.sampling or recommended_sampling(files),
    )
    return OpenModel(served, client, template)


def _aliases(asked: str, name: str) -> tuple[str, ...]:
    """Whoever configured "starter" may also ask for "starter"."""
    return (asked,) if asked in SETS and asked != name else ()


def _template(files: ModelFiles, tokenizer: Tokenizer, header: GGUFHeader | None) -> ChatTemplate | None:
    """None for a model without a chat template: it serves completions, and chat is refused by name."""
    try:
        return load_template(files, tokenizer, header)
    except TemplateFailed as error:
        log.warning("no_chat_template", model=files.name, reason=error.message, effect="it answers completions only")
        return None
