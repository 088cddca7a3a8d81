"""From the name of a model that hears in the store to something that can be asked, and how its engine is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from edgewise.core.errors import BadModelFile
from edgewise.core.settings import Settings
from edgewise.engine.api import Engine
from edgewise.engine.config import EngineConfig
from edgewise.engine.fit import Needs
from edgewise.engine.ledger import REFUSE_MARK
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.memory import climb_bytes
from edgewise.models.encoders.record import form_bytes, ladder_folder, read_ladders
from edgewise.models.encoders.voices import voices_of
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.models.whisper.config import WhisperConfig, WhisperTokens, read_tokens, read_whisper
from edgewise.pipeline.listener import ServedListener
from edgewise.serving.encoders import is_here, ladder_options
from edgewise.serving.served import engine_config, model_needs, with_remedy

_TOGETHER: Final = 4
"""Recordings that are written at once; each holds a whole context of KV pages."""

_ROWS: Final = 32 << 20
"""Bytes of encoded sound that are kept: once they are KV pages, nobody asks for them again."""


_SHARE: Final = 2
"""The pool gives a model half of what it can use beyond its needs: so much must be named for a climb to find room."""


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
    manifest = store.manifest(name)
    wanted = settings.engine.encoder_tuning == "load"
    climb = _climb(store, manifest, whisper, threads, machine) if wanted else {}
    config = replace(
        plain,
        encoder_ladders=str(ladder_folder(store.root, files.digest)),
        encoder_form_bytes=_form_bytes(store, files.digest, threads),
        encoder_climb=climb,
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
    needs = model_needs(config, whisper.sizes(), machine)
    if climb and voices_of(store):
        needs = _with_climb(needs, int(climb["climb_bytes"]))
    return ReadListener(
        config=config,
        whisper=whisper,
        tokens=tokens,
        tokenizer=tokenizer,
        needs=needs,
        created=manifest.installed_seconds,
    )


def _climb(
    store: Store, manifest: Manifest, whisper: WhisperConfig, threads: int, machine: Machine
) -> Mapping[str, str]:
    """How the encoder's ladder is climbed; empty where it was climbed here, and on a card, where torch computes it."""
    records = read_ladders(store.root, manifest.digest)
    if machine.cuda or any(is_here(record, threads, card=False) for record in records):
        return {}
    size = climb_bytes("speech-to-text", whisper.sizes().weight_bytes("float32"))
    return {**ladder_options(store, manifest), "climb_bytes": str(size)}


def _with_climb(needs: Needs, size: int) -> Needs:
    """Room for a climb beside all that the model could use itself."""
    beyond = needs.full - needs.minimal + int(size / REFUSE_MARK) + 1
    return replace(needs, full=needs.minimal + _SHARE * beyond)
