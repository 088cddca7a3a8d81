"""What is asked of a server: lengths, made-up prompts, work from a file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edgewise.bench.work import Lengths, WordCost, Work, drawn_work, listed_work, parse_lengths
from edgewise.core.errors import InvalidRequest


@pytest.mark.parametrize(("text", "low", "high"), [("512", 512, 512), ("1:1", 1, 1), ("128:1024", 128, 1024)])
def test_lengths(text: str, low: int, high: int) -> None:
    lengths = parse_lengths(text, "--x")
    assert lengths == Lengths(low, high)
    assert parse_lengths(str(lengths), "--x") == lengths


@pytest.mark.parametrize("text", ["", "0", "-1", "1:", ":5", "5:4", "a", "1.5", "1:2:3", "9999999", "²"])
def test_what_is_no_length_names_the_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--x"):
        parse_lengths(text, "--x")


def test_drawn_work_is_repeatable_within_bounds_and_shares_no_beginning() -> None:
    def draw(seed: int) -> list[Work]:
        return list(itertools.islice(drawn_work(Lengths(20, 60), Lengths(5, 9), WordCost(10.0, 2.0), seed), 200))

    works = draw(1)
    assert works == draw(1)
    assert works != draw(2)
    words = [len(str(work.prompt).split()) for work in works]
    assert (min(words), max(words)) == (5, 25), "tokens 20 to 60 at 10 + 2 a word"
    assert {work.answer_tokens for work in works} == {5, 6, 7, 8, 9}
    assert len({str(work.prompt)[:30] for work in works}) == len(works)


def test_a_prompt_has_at_least_a_word() -> None:
    assert WordCost(fixed=30.0, per_word=1.1).words(1) == 1


def test_work_from_a_file_goes_round(tmp_path: Path) -> None:
    file = tmp_path / "work.jsonl"
    messages = [{"role": "user", "content": "Hello"}]
    lines = [{"prompt": "Hi", "answer_tokens": 3}, {"messages": messages}, {"prompt_tokens": 12, "answer_tokens": 4}]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    works = list(itertools.islice(listed_work(file, Lengths(7, 7), WordCost(), 0), 5))
    assert works[0] == works[3] == Work(prompt="Hi", answer_tokens=3)
    assert works[1] == works[4] == Work(prompt=messages, answer_tokens=7)
    assert len(str(works[2].prompt).split()) == 12


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON"), ("5", "line 2: write"), ("{}", "line 2: write"), ('{"prompt": 5}', "prompt is 5"),
        ('{"prompt": ""}', "prompt is ''"), ('{"prompt": "x", "answer_tokens": 0}', "answer_tokens is 0"),
        ('{"prompt": "x", "n": 1}', "line 2: write"), ('{"prompt_tokens": true}', "prompt_tokens is True"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "work.jsonl").write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(InvalidRequest, match=message):
        next(listed_work(tmp_path / "work.jsonl", Lengths(1, 1), WordCost(), 0))


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_work_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "work.jsonl").write_bytes(content)
    with pytest.raises(InvalidRequest, match="--from"):
        next(listed_work(tmp_path / "work.jsonl", Lengths(1, 1), WordCost(), 0))
