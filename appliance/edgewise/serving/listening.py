"""From the name of a model that hears in the store to something that can be asked, and how its engine is built."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from edgewise.core.errors import BadModelFile
from edgewise.core.settings import Settings
from edgewise.engine.api import Engine
from edgewise.engine.config import EngineConfig
from edgewise.engine.fit import Needs
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.record import form_bytes, ladder_folder, read_ladders
from edgewise.models.store import Store
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.models.whisper.config import WhisperConfig, WhisperTokens, read_tokens, read_whisper
from edgewise.pipeline.listener import ServedListener
from edgewise.serving.served import engine_config, model_needs, with_remedy

_TOGETHER: Final = 4
"""Recordings that are written at once; each holds a whole context of KV pages."""

_ROWS: Final = 32 << 20
"""Bytes of encoded sound that are kept: once they are KV pages, nobody asks for them again."""


def _form_bytes(store: Store, digest: str, threads: int) -> int:
    """Memory for the winner of a ladder that was climbed here, as far as can be told without loading its libraries."""
    here = (
        form_bytes(one)
        for one in read_ladders(store.root, digest)
        if one.device == cpu_family() and one.threads == threads
    )
    return max(here, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadListener:
    """What was read of a model's files; `needs` says with how much memory it can be loaded."""

    config: EngineConfig
    whisper: WhisperConfig
    tokens: WhisperTokens
    tokenizer: Tokenizer
    needs: Needs
    created: int

    def served(self, engine: Engine, aliases: tuple[str, ...]) -> ServedListener:
        return ServedListener(
            name=self.config.model.name,
            aliases=aliases,
            engine=engine,
            tokenizer=self.tokenizer,
            config=self.whisper,
            tokens=self.tokens,
            digest=self.config.model.digest,
            created=self.created,
        )

    def close(self) -> None:
        """Nothing of it is open."""


def read_listener(settings: Settings, store: Store, name: str, machine: Machine) -> ReadListener:
    """Read a model's small files. Call it in a thread.

    Args:
        machine: `available` is what can be had for this model at most.

    Raises:
        ModelNotFound, BadModelFile, UnsupportedModel, ConfigError: Why it cannot be served.
    """
    files = store.resolve(name, "speech-to-text")
    try:
        whisper, tokens, tokenizer = read_whisper(files), read_tokens(files), load_tokenizer(files)
    except BadModelFile as error:
        raise with_remedy(error, name) from error
    plain = engine_config(settings, files)
    threads = plain.threads or len(os.sched_getaffinity(0))
    config = replace(
        plain,
        encoder_ladders=str(ladder_folder(store.root, files.digest)),
        encoder_form_bytes=_form_bytes(store, files.digest, threads),
        # 8 bits are for contexts that are long: here they would save a few MiB, and sound is what all text is read off.
        kv_dtype="bfloat16" if plain.kv_dtype == "auto" else plain.kv_dtype,
        # What is set for the models that write holds for no Whisper: only the reference kernels compute it.
        kernels="reference",
        quantize="none",
        max_context=None,
        kv_memory_bytes=None,
        max_running=min(plain.max_running, _TOGETHER),
        max_step_tokens=max(plain.max_step_tokens, whisper.audio_tokens),
        encoder_cache_bytes=min(plain.encoder_cache_bytes, _ROWS),
        host_cache_bytes=0,
        disk_cache_dir=None,
        disk_cache_bytes=0,
        handover_bytes=0,
    )
    return ReadListener(
        config=config,
        whisper=whisper,
        tokens=tokens,
        tokenizer=tokenizer,
        needs=model_needs(config, whisper.sizes(), machine),
        created=store.manifest(name).installed_seconds,
    )
