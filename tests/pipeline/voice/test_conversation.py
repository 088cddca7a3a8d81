"""What a model is told of a conversation: what was heard, and as much of it as fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import InvalidRequest
from edgewise.pipeline.voice.conversation import MESSAGE_TOKENS, Conversation, Item, SpokenPhrase, heard_text


def _spoken(id: str = "a") -> Item:
    phrases = [SpokenPhrase("One two three. ", 1000), SpokenPhrase("Four five six.", 1000)]
    return Item(id=id, role="assistant", audio=True, text="One two three. Four five six.", phrases=phrases)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, ""), (1000, "One two three. "), (1500, "One two three. Four "), (2000, "One two three. Four five six.")],
)
def test_an_interrupted_answer_is_what_was_heard_of_it(ms: float, text: str) -> None:
    conversation = Conversation()
    conversation.add(_spoken())
    conversation.truncate("a", ms)
    told = conversation.messages("")
    assert [one["content"] for one in told] == ([text.strip()] if text else [])


def test_a_later_truncation_may_be_longer_than_an_estimate_but_not_than_the_speech() -> None:
    conversation = Conversation()
    conversation.add(_spoken())
    conversation.truncate("a", 100)
    conversation.truncate("a", 1000)
    assert conversation.messages("")[0]["content"] == "One two three."
    with pytest.raises(InvalidRequest, match="2000 ms"):
        conversation.truncate("a", 2500)


def test_only_spoken_answers_are_truncated() -> None:
    conversation = Conversation()
    conversation.add(Item(id="q", role="user", text="hi"))
    with pytest.raises(InvalidRequest, match="no spoken answer"):
        conversation.truncate("q", 0)
    with pytest.raises(InvalidRequest, match="no item"):
        conversation.truncate("other", 0)


@given(st.lists(st.tuples(st.text("ab ", max_size=20), st.integers(0, 500)), max_size=10), st.floats(0, 6000))
def test_heard_text_is_a_beginning(parts: list[tuple[str, int]], end_ms: float) -> None:
    phrases = [SpokenPhrase(text, ms) for text, ms in parts]
    whole = "".join(text for text, _ in parts)
    assert whole.startswith(heard_text(phrases, end_ms))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(50, 1000))
def test_what_is_dropped_is_the_oldest_and_the_rest_fits(sizes: list[int], budget: int) -> None:
    conversation = Conversation()
    for number, size in enumerate(sizes):
        conversation.add(Item(id=str(number), role="user" if number % 2 == 0 else "assistant", text="x" * size))
    dropped = conversation.fit(len, budget)
    assert dropped == [str(number) for number in range(len(dropped))]
    kept = sizes[len(dropped) :]
    assert len(conversation) == len(kept) >= 1
    assert len(kept) == 1 or sum(kept) + MESSAGE_TOKENS * len(kept) <= budget
    if dropped and len(kept) > 1:
        assert conversation.find(str(len(dropped))).role == "user"
    if not dropped:
        assert conversation.fit(len, budget) == []


def test_instructions_come_first_and_what_has_no_words_is_left_out() -> None:
    conversation = Conversation()
    conversation.add(Item(id="q", role="user", text=" "))
    conversation.add(Item(id="r", role="user", text="Hello"))
    assert [one["role"] for one in conversation.messages("Be brief.")] == ["system", "user"]
