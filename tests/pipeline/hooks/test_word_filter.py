"""The word filter's list and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import ConfigError, ContentRefused
from edgewise.pipeline.hooks.protocol import Call, HookSetup, PromptText
from edgewise.pipeline.hooks.word_filter import WordFilter

CALL = Call(request_id="r", key="k", model="m", digest="d")


def make(home: Path, words: str = "# a list\nforbidden\n/sec[a-z]+t[0-9]+/\n", **options: str) -> WordFilter:
    (home / "words.txt").write_text(words)
    return WordFilter(HookSetup(home=home, options={"file": "words.txt", **options}))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("It is FORBIDDEN!", True),
        ("unforbidden", False),
        ("forbiddenness", False),
        ("a secret42", True),
        ("secret", False),
    ],
)
async def test_prompts(tmp_path: Path, text: str, refused: bool) -> None:
    prompt = [PromptText("user", "hello"), PromptText("tool", text)]
    if not refused:
        assert await make(tmp_path).before_prompt(CALL, prompt) == ["hello", text]
        return
    with pytest.raises(ContentRefused):
        await make(tmp_path).before_prompt(CALL, prompt)
    assert "[removed]" in (await make(tmp_path, prompt="replace").before_prompt(CALL, prompt))[1]
    assert await make(tmp_path, prompt="off").before_prompt(CALL, prompt) == ["hello", text]


def test_answers_can_be_left_alone(tmp_path: Path) -> None:
    assert make(tmp_path, answer="off").watch(CALL) is None
    watch = make(tmp_path, hold="20").watch(CALL)
    assert watch is not None
    assert watch.hold_back == 21


@pytest.mark.parametrize(
    ("words", "options", "match"),
    [
        ("", {}, "no entry"),
        ("/(/", {}, "no expression"),
        ("/a*/", {}, "empty text"),
        ("a", {"prompt": "maybe"}, r"word-filter\.prompt"),
        ("a", {"hold": "0"}, r"word-filter\.hold"),
        ("a", {"files": "x"}, "no option 'files'"),
        ("a", {"file": "missing.txt"}, "cannot read"),
    ],
)
def test_mistakes_are_said_at_the_start(tmp_path: Path, words: str, options: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(tmp_path, words, **options)
