"""A small byte-level BPE vocabulary for tiny random models, learned from a paragraph of our own.

Training is the textbook loop (Sennrich et al. 2016): merge the most frequent adjacent pair, ties broken by the pair
itself, so the same size always gives the same bytes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

from edgewise.models.bytelevel import BYTE_TO_CHAR

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_CORPUS = """
The pump in hall seven hums all night, and nobody on the shift thinks about it until the sound changes. A small computer
beside the control cabinet listens. It knows what a healthy bearing sounds like, what the pressure should be when the
valve opens, and how warm the motor may get before someone has to look. When the link to the office is down, it answers:
which part is worn, how long the spare takes to fit, who wrote the last note in the log, why the flow was low on Monday.
People ask in plain words. "What happened at three o'clock?" they say, or "Show me the readings from last week, please."
The answer comes back as text, one word after another, with the numbers it used and the place where it found them.
Some questions are too big for the little box. Then it says so, sends the work to a larger machine, streams the reply
as if nothing had happened; the operator sees where each step ran and what it cost. If the larger machine goes away in
the middle of a sentence, the small one picks up the thread and finishes it. Nothing is lost, nothing is said twice.
In the morning the team reads the report: 12 messages, 4 warnings, 0 failures; temperature between 18 and 41 degrees.
def check(value: int, limit: int = 100) -> bool:
    return value < limit and value > 0
for name in names: print(name, total[name])
Users, assistants and system prompts all use the same vocabulary; every byte has a token, so any language works.
""".strip()


@dataclass(frozen=True, slots=True)
class TinyVocab:
    """Tokens by id and merges by rank, both in the byte-level alphabet. Ids 0 to 2 are `SPECIAL_TOKENS`."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]


def build_vocab(size: int, special: tuple[str, ...] = SPECIAL_TOKENS) -> TinyVocab:
    """Learn a vocabulary of `size` tokens, or of as many as the text supports (about 750), `special` ones first.

    Raises:
        ValueError: `size` has no room for the 256 bytes and the special tokens.
    """
    least = len(special) + 256
    if size < least:
        raise ValueError(f"a byte-level vocabulary needs at least {least} tokens, not {size}")
    tokens = [*special, *(BYTE_TO_CHAR[byte] for byte in range(256))]
    known = set(tokens)
    words = _count_words()
    merges: list[tuple[str, str]] = []
    while len(tokens) < size and (pair := _most_frequent_pair(words)) is not None:
        words = {_merge(word, pair): count for word, count in words.items()}
        merges.append(pair)
        joined = "".join(pair)
        if joined not in known:  # two ways to build one token share an id
            known.add(joined)
            tokens.append(joined)
    return TinyVocab(tuple(tokens), tuple(merges))


def _count_words() -> dict[tuple[str, ...], int]:
    pieces = re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", _CORPUS)
    counted = Counter(tuple(BYTE_TO_CHAR[byte] for byte in piece.encode()) for piece in pieces)
    return dict(counted)


def _most_frequent_pair(words: dict[tuple[str, ...], int]) -> tuple[str, str] | None:
    pairs: Counter[tuple[str, str]] = Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            pairs[pair] += count
    return min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            merged.append(word[i] + word[i + 1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return tuple(merged)
