"""Text and tokens of one answer do not depend on how the engine's tokens are grouped."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from edgewise.engine.request import FinishReason, TokenLogprobs
from edgewise.pipeline.text import ShownToken, TextAssembler, TextChunk
from tests.fakes.text import EOS, ByteTokenizer

FINISHES = st.sampled_from(["length", "stop"])


def assemble(
    tokens: Sequence[int], groups: Sequence[int], stops: Sequence[str], finish: FinishReason
) -> tuple[list[TextChunk], TextAssembler]:
    """Feed tokens in groups of the given sizes until the end or a stop string."""
    assembler = TextAssembler(ByteTokenizer(), stops)
    logprobs = [TokenLogprobs(token=token, logprob=-float(index)) for index, token in enumerate(tokens)]
    chunks: list[TextChunk] = []
    start = turn = 0
    while start < len(tokens) and not assembler.stopped:
        end = min(len(tokens), start + (groups[turn % len(groups)] if groups else 1))
        chunk = assembler.feed(tokens[start:end], logprobs[start:end], finish if end == len(tokens) else None)
        if chunk is not None:
            chunks.append(chunk)
        start, turn = end, turn + 1
    return chunks, assembler


def joined(chunks: Sequence[TextChunk]) -> tuple[str, list[ShownToken], list[int], str | None]:
    return (
        "".join(chunk.text for chunk in chunks),
        [token for chunk in chunks for token in chunk.shown],
        [id for chunk in chunks for id in chunk.token_ids],
        chunks[-1].finish,
    )


@given(
    st.text("aé👍\n", min_size=1, max_size=20),
    st.lists(st.integers(1, 9), max_size=5),
    st.lists(st.text("aé👍", min_size=1, max_size=3), max_size=3),
    FINISHES,
)
def test_grouping_changes_nothing(text: str, groups: list[int], stops: list[str], finish: FinishReason) -> None:
    tokens = [*text.encode(), *([EOS] if finish == "stop" else [])]
    single, _ = assemble(tokens, [1], stops, finish)
    grouped, assembler = assemble(tokens, groups, stops, finish)
    assert joined(grouped) == joined(single)
    assert assembler.count == len(joined(single)[2])
    shown_text, shown, _, reason = joined(grouped)
    found = [text.find(stop) for stop in stops if stop in text]
    assert shown_text == text[: min(found, default=len(text))]
    assert reason == ("stop" if found else finish)
    assert [chunk.finish for chunk in grouped[:-1]] == [None] * (len(grouped) - 1)
    assert EOS not in [token.id for token in shown]


@given(st.text("aé👍", min_size=1, max_size=20), st.lists(st.integers(1, 9), max_size=5))
def test_tokens_come_with_the_text_they_end_in(text: str, groups: list[int]) -> None:
    chunks, _ = assemble(list(text.encode()), groups, ["zz"], "length")
    for chunk in chunks:
        assert bytes(token.id for token in chunk.shown).decode() == chunk.text
        if chunk.shown:
            assert chunk.shown[0].offset == chunk.offset


def test_tokens_of_held_text_are_held_with_it() -> None:
    chunks, _ = assemble(list(b"say stop"), [1], ["st-"], "length")
    texts = [chunk.text for chunk in chunks if chunk.text]
    assert texts == ["s", "a", "y", " ", "sto", "p"] or "".join(texts) == "say stop"
    held = next(chunk for chunk in chunks if chunk.text.startswith("st"))
    assert bytes(token.id for token in held.shown).decode() == held.text


def test_tokens_inside_the_stop_string_are_counted_but_not_shown() -> None:
    chunks, assembler = assemble(list(b"ab STOP cd"), [3], [" STOP"], "length")
    text, shown, ids, finish = joined(chunks)
    assert (text, finish) == ("ab", "stop")
    assert bytes(token.id for token in shown) == b"ab"
    assert bytes(ids) == b"ab STOP"
    assert assembler.count == 7


def test_an_answer_that_ends_inside_a_character_shows_whole_ones_only_and_says_so() -> None:
    chunks, assembler = assemble(list("a👍".encode()[:-1]), [2], [], "length")
    text, shown, ids, finish = joined(chunks)
    assert (text, finish) == ("a", "length")
    assert len(shown) == len(ids) == 4
    assert assembler.cut_bytes == 3


def test_the_stop_token_is_consumed_but_has_no_text() -> None:
    chunks, _ = assemble([ord("a"), ord("b")], [2], [], "stop")
    text, shown, ids, _ = joined(chunks)
    assert (text, [token.id for token in shown], ids) == ("a", [ord("a")], [ord("a"), ord("b")])
