"""What a chat keeps, what of it the device is told, and when it is forgotten."""

from __future__ import annotations

from edgewise.cloud.console.conversations import Conversation, Conversations


def talk(said: Conversation, question: str, answer: str) -> None:
    said.ask(question)
    said.command_id = "c1"
    said.answer("c1", answer, "9 tokens")


def test_a_question_without_an_answer_is_shown_but_not_told_again() -> None:
    said = Conversation()
    talk(said, "one", "1")
    talk(said, "two", "")
    said.ask("three")
    assert [line.content for line in said.lines] == ["one", "1", "two", "", "three"]
    assert [message["content"] for message in said.messages()] == ["one", "1", "three"]


def test_two_pages_that_see_one_answer_write_it_once() -> None:
    said = Conversation()
    talk(said, "one", "1")
    said.answer("c1", "1", "9 tokens")
    assert len(said.lines) == 2


def test_the_oldest_questions_give_way_with_their_answers() -> None:
    said = Conversation()
    for n in range(60):
        talk(said, f"question {n}", "long " * 1000)
    said.ask("last")
    assert said.lines[0].role == "user"
    assert sum(len(line.content) for line in said.lines) < 101_000
    assert said.messages()[-1] == {"role": "user", "content": "last"}


def test_a_session_that_ends_takes_its_conversations_along() -> None:
    kept = Conversations()
    talk(kept.of("ada", "d1"), "one", "1")
    talk(kept.of("ben", "d1"), "two", "2")
    kept.forget("ada")
    assert kept.of("ada", "d1").lines == []
    assert len(kept.of("ben", "d1").lines) == 2
    for n in range(300):
        kept.of("ada", f"d{n}")
    assert kept.of("ben", "d1").lines == [], "the longest untouched gave way"
