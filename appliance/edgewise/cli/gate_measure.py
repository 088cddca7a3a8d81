"""Runs a model's gate: texts to tokens, tokens through the engine's formats, figures into a record. Imports torch."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone

from edgewise.core.errors import InvalidRequest
from edgewise.engine.gate import GateProgress, Needle, measure_formats
from edgewise.engine.networks import describe
from edgewise.models.gate_record import GateRecord
from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.gguf import header_of
from edgewise.pipeline.gate_text import built_in_text, needle_prompts


def measure(
    store: Store, name: str, text: str | None, tokens: int, lengths: tuple[int, ...], progress: GateProgress | None
) -> GateRecord:
    """Run the gate of a model in the store.

    Args:
        text: What to read; None takes the built-in text.
        tokens: How many tokens of it.
        lengths: Prompts of the needle test, in tokens; those that the model has no room for are left out.

    Raises:
        InvalidRequest: The text is too short.
        ModelNotFound, BadModelFile, UnsupportedModel, OutOfMemory: As their names say.
    """
    text = built_in_text() if text is None else text
    files = store.resolve(name)
    tokenizer = load_tokenizer(files, header_of(files) if files.format == "gguf" else None)
    read = tokenizer.encode(text, parse_special=False)[:tokens]
    if len(read) < 32:
        raise InvalidRequest(f"The text has {len(read)} tokens: at least 32 are needed.", param="text")
    longest = describe(files).max_position - 16
    lengths = tuple(length for length in lengths if length <= longest)
    needles = [Needle(*it) for it in needle_prompts(tokenizer, read, lengths)]
    result = measure_formats(files, read, needles, progress=progress)
    return GateRecord(
        model=files.name,
        digest=files.digest,
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        positions=result.positions,
        needle_lengths=lengths,
        needles=len(needles),
        perplexity=result.perplexity,
        needles_found=result.needles_found,
        formats=result.formats,
    )
