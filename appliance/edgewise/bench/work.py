"""What is asked: how long prompts and answers are, and prompts of about such a length that share no beginning."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgewise.core.errors import InvalidRequest

MAX_TOKENS: Final = 1 << 20

# Common words of one token in most vocabularies; what they say does not matter, that they differ does.
_COMMON: Final = (
    "about after again air all also answer any around ask away back base been before below between book both boy came "
    "change city close country cut day different does door down each earth end even every eye face far father feet find "
    "first follow food form four from give good great group grow hand hard head help here high home house idea into just "
    "keep kind know land large last late learn leave left letter life light line list little live long look made make man "
    "many mean men might mile more most mother move much must name near need never new next night number off often old "
    "once one only open other our out over own page paper part people place plant play point read right river run said "
    "same saw say school sea second see sentence set should show side small sound spell stand start state still stop "
    "story study such take talk tell than that them then there these thing think this those thought three time together "
    "took tree turn two under until use very want watch water way well went what when where which while white who why "
    "will with word work world would write year you young"
)
_WORDS: Final = tuple(_COMMON.split())


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of tokens, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


def parse_lengths(text: str, option: str) -> Lengths:
    """`512` or `128:1024`; raises InvalidRequest, naming `option`, for anything else."""
    low, colon, high = text.partition(":")
    high = high if colon else low
    if low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= MAX_TOKENS:
        return Lengths(int(low), int(high))
    raise InvalidRequest(
        f"{option} {text!r}: write a number of tokens from 1 to {MAX_TOKENS}, or a range such as 128:1024."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request.

    Attributes:
        prompt: Text, token ids (for /v1/completions), or the messages of a conversation.
        answer_tokens: Most tokens to answer.
    """

    prompt: str | list[int] | list[dict[str, Any]]
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class WordCost:
    """How many tokens a prompt of n words has on this server: `fixed + per_word * n`, fitted on its own counts."""

    fixed: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """The number of words that comes nearest to `tokens`; at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def make_text(words: int, rng: random.Random) -> str:
    """So many random words: no two prompts share a beginning, so no cache of prefixes helps."""
    return " ".join(rng.choices(_WORDS, k=words))


def drawn_work(prompt: Lengths, answer: Lengths, cost: WordCost, seed: int) -> Iterator[Work]:
    """Endless work with drawn lengths; equal arguments give equal work."""
    rng = random.Random(seed)  # noqa: S311 - made-up prompts
    while True:
        text = make_text(cost.words(prompt.draw(rng)), rng)
        yield Work(prompt=text, answer_tokens=answer.draw(rng))


def listed_work(path: Path, answer: Lengths, cost: WordCost, seed: int) -> Iterator[Work]:
    """Endless work from a file, again and again from its beginning.

    Args:
        path: JSON lines. Each has `prompt` (text), `messages`, or `prompt_tokens` (a prompt is made up), and may have
            `answer_tokens`.
        answer: For lines without `answer_tokens`.
        cost: For made-up prompts.
        seed: Likewise.

    Raises:
        InvalidRequest: It cannot be read, or a line has another form; the message names the line.
    """
    rng = random.Random(seed)  # noqa: S311 - made-up prompts
    lines = _read_lines(path)
    for line in itertools.cycle(lines):
        prompt = line.get("messages") or line.get("prompt") or make_text(cost.words(line["prompt_tokens"]), rng)
        yield Work(prompt=prompt, answer_tokens=line.get("answer_tokens") or answer.draw(rng))


def _read_lines(path: Path) -> list[Mapping[str, Any]]:
    try:
        texts = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"--from {path} cannot be read: {error}.") from error
    lines = [_parse(text, f"--from {path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    if not lines:
        raise InvalidRequest(f"--from {path} has no line.")
    return lines


def _parse(text: str, where: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is no JSON: {error}.") from error
    known = {"prompt": str, "messages": list, "prompt_tokens": int, "answer_tokens": int}
    if not isinstance(line, dict) or set(line) - set(known) or not set(line) & {"prompt", "messages", "prompt_tokens"}:
        raise InvalidRequest(f"{where}: write prompt, messages or prompt_tokens, and answer_tokens if you like.")
    for name, value in line.items():
        if type(value) is not known[name] or not value or (isinstance(value, int) and not 1 <= value <= MAX_TOKENS):
            raise InvalidRequest(f"{where}: {name} is {value!r:.80}.")
    return line
