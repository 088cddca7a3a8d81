"""Builds the engine of a model for text, and gives one that can speak its voice: Talker and Code2Wav, loaded beside it."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Final, cast

import torch

from edgewise.engine.build import Built, build_parts
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import ProgressSink
from edgewise.engine.engine import Engine
from edgewise.engine.kv_cache import allocate
from edgewise.engine.omni.engine import OmniEngine
from edgewise.engine.omni.stages import MOST_CODES, SpeechStages
from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.models.decoder.memory import kv_bytes_per_token
from edgewise.models.decoder.model import Decoder
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.multimodal.loading import MultimodalDecoder
from edgewise.models.omni.config import read_omni
from edgewise.models.omni.loading import load_code2wav, load_talker
from edgewise.models.omni.voices import read_voices
from edgewise.models.weights.open import open_weights

_TOGETHER: Final = 2
"""Answers of full length that can be spoken at once; shorter ones more."""
_PROMPT: Final = 4096
"""Tokens of a prompt after which an answer of full length can be spoken."""


def build(config: EngineConfig, progress: ProgressSink) -> Engine | OmniEngine:
    """The engine of any model for text; of one that speaks, with its voice. Raises as `engine.build.build_parts`."""
    built = build_parts(config, progress)
    if not isinstance(built.network, MultimodalConfig) or not built.network.speaks:
        return built.engine
    return give_voice(config.model, built)


def give_voice(files: ModelFiles, built: Built) -> OmniEngine:
    """Load what speaks. Its weights have been counted with the Thinker's, as if in 16 or 32 bits as the Thinker's are.

    Raises:
        OutOfMemory: The Talker's cache, or what Code2Wav takes in float32 beyond that, has no room.
        BadModelFile, UnsupportedModel: As `models.omni.loading`.
    """
    device, name, kv_dtype = built.device, built.numerics.dtype, built.numerics.kv_dtype
    dtype: torch.dtype = getattr(torch, name)
    config = read_omni(files)
    pages = -(-_TOGETHER * min(_PROMPT + MOST_CODES, config.talker.decoder.max_position) // PAGE_TOKENS)
    voices = read_voices(files, config)
    with closing(open_weights(files)) as reader:
        sounding = sum(math.prod(info.shape) for info in reader.tensors.values() if info.name.startswith("token2wav."))
        cache = pages * PAGE_TOKENS * kv_bytes_per_token(config.talker.decoder, kv_dtype, name)
        built.ledger.book("speech", cache + sounding * (torch.float32.itemsize - dtype.itemsize))
        talker = load_talker(config, files, reader, device=device, dtype=dtype)
        code2wav = load_code2wav(config, files, reader, device=device)
    talker.decoder.prove_rows()
    kv = allocate(
        config.talker.decoder,
        num_pages=pages,
        kv_dtype=kv_dtype,
        dtype=name,
        device=device,
    )
    thinker = cast("Decoder", cast("MultimodalDecoder", built.loaded).decoder)
    stages = SpeechStages(config, talker, code2wav, voices, thinker.parameters.embedding, kv)
    built.runner.observer = stages.hear
    return OmniEngine(built.engine, stages)
