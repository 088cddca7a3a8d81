"""What a model's gate has measured, kept in the store beside the model: which formats are good enough for it. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgewise.core.errors import BadModelFile, StorageError
from edgewise.core.files import atomic_write
from edgewise.core.log import get_logger
from edgewise.models.small_files import read_object

SCHEMA = 1
_MAX_BYTES = 1 << 20

log = get_logger(__name__)

FormatKind = Literal["kv", "weights", "handover", "peer", "both"]

BOUNDS: Mapping[tuple[str, str], float] = {
    ("kv", "bfloat16"): 0.0015,
    ("kv", "float16"): 0.0015,
    ("kv", "int8"): 0.0015,
    ("kv", "fp8"): 0.02,
    ("handover", "int4"): 0.01,
    ("weights", "bfloat16"): 0.01,
    ("weights", "float16"): 0.01,
    ("weights", "fp8"): 0.05,
}
"""Largest mean Kullback-Leibler divergence in nats with which a format passes: to float32, of a hand-over to bfloat16 pages."""

PEERS: Mapping[str, str] = {"int8": "Q8_0", "int4": "Q4_0"}
"""Weight formats whose bound is measured: what llama.cpp's format of as many bits diverges on the same weights and text."""

PEER_SLACK = 1.05
"""Times that: of files in 8 bits both compute the same, and such figures move by percents with the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRecord:
    """One format against float32 in everything; a hand-over, whose pages are rounded on their way, against bfloat16 pages.

    Weights in 8 and 4 bits are measured with the activations of their products in 8 bits, as native kernels compute them; those
    in fp8 with activations in fp8, as a card does.

    Attributes:
        kind, name: KV pages or weights in this format, a prompt's KV pages rounded to it, or a format of llama.cpp ("peer"),
            all else float32; "both" are weights and KV pages, "int8/fp8".
        mean_kl, max_kl: Kullback-Leibler divergence of the next-token distributions, in nats.
        agreement: Share of positions where both put the same token first.
        perplexity: On the text.
        needles: How many hidden facts were repeated from the prompt; None where that was not tried.
        capacity: Tokens per byte relative to bfloat16 pages; None for weights.
        bound: What `mean_kl` must meet.
        passed: Whether it did, and no needle was lost that float32 finds; of weights with a peer also, whether they agree with
            float32 as often as it does, within two standard errors.
        bits: Of a weight, scales counted, the mean over all matrices; None for KV pages.
    """

    kind: FormatKind
    name: str
    mean_kl: float
    max_kl: float
    agreement: float
    perplexity: float
    needles: int | None
    capacity: float | None
    bound: float
    passed: bool
    bits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """A gate's outcome.

    Attributes:
        model, digest: Whose it is.
        measured_at: UTC, ISO 8601.
        text_sha256, positions: The text it read, and how many positions of it counted.
        needle_lengths, needles: Prompt lengths in tokens; hidden facts in all.
        perplexity, needles_found: Of float32 in everything.
    """

    model: str
    digest: str
    measured_at: str
    text_sha256: str
    positions: int
    needle_lengths: tuple[int, ...]
    needles: int
    perplexity: float
    needles_found: int
    formats: tuple[FormatRecord, ...]

    def passed(self, kind: FormatKind) -> frozenset[str]:
        """Names of the formats that passed."""
        return frozenset(it.name for it in self.formats if it.kind == kind and it.passed)

    def failed(self, kind: FormatKind) -> frozenset[str]:
        """Names of those that were measured and did not."""
        return frozenset(it.name for it in self.formats if it.kind == kind and not it.passed)


def write_record(store_root: Path, record: GateRecord) -> Path:
    """Keep a record, in place of an older one of the same model.

    Raises:
        StorageError: The disk refuses.
    """
    path = _path(store_root, record.digest)
    atomic_write(path, json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1) + "\n")
    return path


def read_record(store_root: Path, digest: str) -> GateRecord | None:
    """The record of the model with this digest; None if there is none. A damaged one is reported and ignored."""
    path = _path(store_root, digest)
    if not path.exists():
        return None
    try:
        return _parse(read_object(path, path.name, most=_MAX_BYTES), digest)
    except (BadModelFile, StorageError) as error:
        log.warning(
            "gate_record_ignored", file=str(path), reason=error.message, remedy="run `edgewise models gate` again"
        )
        return None


def _parse(raw: Mapping[str, Any], digest: str) -> GateRecord:
    try:
        if raw["schema"] != SCHEMA or raw["digest"] != digest:
            raise BadModelFile(f"not of schema {SCHEMA}, or of another model")
        fields = {name: raw[name] for name in GateRecord.__slots__ if name not in ("formats", "needle_lengths")}
        formats = tuple(FormatRecord(**it) for it in raw["formats"])
        record = GateRecord(**fields, formats=formats, needle_lengths=tuple(raw["needle_lengths"]))
        if not all(isinstance(it.passed, bool) and isinstance(it.name, str) for it in formats):
            raise BadModelFile("a format's verdict is no truth value")
    except (KeyError, TypeError) as error:
        raise BadModelFile(f"a field is missing or unknown: {error}") from error
    return record


def _path(store_root: Path, digest: str) -> Path:
    return store_root / "gates" / f"{digest.replace(':', '-')}.json"
