"""However an answer is divided, it is cut where a search of the whole text cuts it, and nothing of a match is ever shown."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.pipeline.hooks.gate import Gate, HeldText
from edgewise.pipeline.hooks.protocol import TextFilter
from edgewise.pipeline.hooks.word_filter import WordWatch
from edgewise.pipeline.text import ShownToken, TextChunk, ToolCallDelta

WORD = re.compile(r"(?<!\w)(?:bad|b b)(?!\w)")
HOLD = 4
TEXT = st.text("abd ", max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


async def check(one: TextFilter, text: str, start: int, last: bool) -> int | None:
    return await one.check(text, start, last=last)


def gate(hold: int = HOLD) -> Gate:
    return Gate(lambda: HeldText([WordWatch(WORD, hold)], check))


def pieces(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


def chunks(text: str, cuts: list[int]) -> list[TextChunk]:
    """One token a character."""
    made, offset = [], 0
    parts = pieces(text, cuts)
    for index, part in enumerate(parts):
        shown = tuple(ShownToken(ord(char), offset + place, None) for place, char in enumerate(part))
        finish = "stop" if index == len(parts) - 1 else None
        made.append(
            TextChunk(
                sequence=0,
                offset=offset,
                text=part,
                shown=shown,
                token_ids=tuple(map(ord, part)),
                finish=finish,  # type: ignore[arg-type]
            )
        )
        offset += len(part)
    return made


async def through(given: list[TextChunk], hold: int = HOLD) -> list[TextChunk]:
    one, out = gate(hold), []
    for chunk in given:
        shown = await one.feed(chunk)
        if shown is not None:
            out.append(shown)
            if shown.finish is not None:
                break
    return out


@settings(deadline=None)
@given(TEXT, CUTS)
async def test_the_text_is_cut_where_a_whole_search_cuts_it(text: str, cuts: list[int]) -> None:
    found = WORD.search(text)
    out = await through(chunks(text, cuts))
    expected = text if found is None else text[: found.start()]
    assert "".join(one.text for one in out) == expected
    assert [one.finish for one in out] == [None] * (len(out) - 1) + ["stop" if found is None else "content_filter"]
    place = 0
    for one in out:
        assert one.offset == place
        place += len(one.text)
    tokens = [token.id for one in out for token in one.shown]
    assert tokens == [ord(char) for char in expected]
    ids = [id for one in out for id in one.token_ids]
    assert ids == ([ord(char) for char in text] if found is None else ids[: len(expected)])
    assert "".join(map(chr, ids)) == text[: len(ids)]


@given(TEXT, CUTS)
async def test_nothing_waits_longer_than_the_hold(text: str, cuts: list[int]) -> None:
    one, read, shown = gate(), 0, 0
    for chunk in chunks(text, cuts):
        out = await one.feed(chunk)
        read += len(chunk.text)
        shown += 0 if out is None else len(out.text)
        if out is not None and out.finish == "content_filter":
            return
        assert read - shown <= HOLD


@given(TEXT, CUTS)
async def test_arguments_of_calls_are_watched_too(text: str, cuts: list[int]) -> None:
    deltas = [TextChunk(sequence=0, offset=0, text="", tool_calls=(ToolCallDelta(index=0, id="c", name="f"),))]
    deltas += [
        TextChunk(sequence=0, offset=0, text="", tool_calls=(ToolCallDelta(index=0, arguments=part),))
        for part in pieces(text, cuts)
    ]
    deltas.append(TextChunk(sequence=0, offset=0, text="", finish="tool_calls"))
    out = await through(deltas)
    found = WORD.search(text)
    calls = [call for one in out for call in one.tool_calls]
    assert [call.name for call in calls if call.name] == ["f"]
    assert "".join(call.arguments for call in calls) == (text if found is None else text[: found.start()])
    assert out[-1].finish == ("tool_calls" if found is None else "content_filter")


async def test_text_before_a_call_is_shown_before_it() -> None:
    call = ToolCallDelta(index=0, id="c", name="f", arguments="{}")
    out = await through(
        [
            TextChunk(sequence=0, offset=0, text="abc"),
            TextChunk(sequence=0, offset=3, text="", tool_calls=(call,)),
            TextChunk(sequence=0, offset=3, text="", finish="tool_calls"),
        ]
    )
    assert [(one.text, bool(one.tool_calls)) for one in out] == [("abc", True), ("", True)]
