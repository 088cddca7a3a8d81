"""What a tuner found, on disk: one JSON file for a card, its software and the kernels' sources. Imports no torch.

Reading never fails an engine: what cannot be used is said in words, and the defaults serve.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from edgewise.core.files import atomic_write, make_folder

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a measurement holds.

    Attributes:
        card: The device's name.
        capability: Of computing, as "9.0".
        driver, torch, triton: Versions.
        sources: Digest of the kernels (`source_digest`).
    """

    card: str
    capability: str
    driver: str
    torch: str
    triton: str
    sources: str

    def differs(self, other: Place) -> list[str]:
        """Names of what is not the same."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate and what became of it.

    Attributes:
        site: What was computed, in words.
        candidate: How.
        us: Microseconds of a call; None where it was not timed.
        chosen: Whether it serves.
        why_not: What is wrong with it; "" where nothing is.
    """

    site: str
    candidate: Mapping[str, Any]
    us: float | None
    chosen: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found for one shape of model.

    Attributes:
        place: Where.
        shape: Of the model, in words that name all that decides (`models.decoder.cuda.tuning.shape_name`).
        plan: `kernels.triton.plan.Plan.document`.
        trials: All candidates.
        when: UTC, ISO 8601.
        seconds: That it took.
        figures: Microseconds of a whole step by class of rows, by default and as chosen.
        failed: Which site has nothing that is right, so that defaults serve although they may be wrong; "" where all is well.
    """

    place: Place
    shape: str
    plan: Mapping[str, Any]
    trials: tuple[Trial, ...]
    when: str
    seconds: float
    figures: Mapping[str, Any]
    failed: str = ""

    @property
    def refused(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.why_not)


@cache
def source_digest() -> str:
    """Of all that decides what a kernel computes and how fast."""
    folder = Path(__file__).parent / "triton"
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def path_of(folder: Path, place: Place, shape: str) -> Path:
    name = hashlib.sha256(shape.encode()).hexdigest()[:12]
    return folder / f"{place.key}-{name}.json"


def save(folder: Path, tuned: Tuned) -> Path:
    """Write a record in place of the one before.

    Raises:
        StorageError: It cannot be written.
    """
    path = path_of(folder, tuned.place, tuned.shape)
    make_folder(path.parent)
    atomic_write(path, json.dumps({"format": FORMAT, **asdict(tuned)}, indent=1))
    return path


def load(folder: Path, place: Place, shape: str) -> tuple[Tuned | None, str]:
    """The record of a shape on a card, or None and why there is none that can be used ("" where there is simply none)."""
    path = path_of(folder, place, shape)
    if not path.exists():
        return None, ""
    try:
        tuned = _read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"{path} cannot be read: {error!r}"
    if tuned.place != place or tuned.shape != shape:
        return None, f"{path} is of another card or shape"
    return tuned, ""


def records(folder: Path) -> Iterator[Tuned]:
    """All that can be read."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield _read(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _read(path: Path) -> Tuned:
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.pop("format") != FORMAT:
        raise ValueError("another format")
    document["place"] = Place(**document["place"])
    document["trials"] = tuple(Trial(**trial) for trial in document["trials"])
    return Tuned(**document)
