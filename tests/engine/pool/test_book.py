"""The pool's rules one by one; `test_book_machine.py` tries them in any order."""

from __future__ import annotations

import pytest

from edgewise.core.errors import BadModelFile, EdgewiseError, EngineUnavailable, ModelNotFound, OutOfMemory
from edgewise.core.modality import Modality
from edgewise.engine.fit import Needs
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.entry import FOREVER, Action, Fail, Grant, Load, Unload

NEEDS = Needs(minimal=60, full=100, context=512)


def book(*names: str, budget: int = 100, pinned: tuple[str, ...] = (), needs: Needs = NEEDS) -> PoolBook:
    made = PoolBook(budget, wait_s=10.0, retry_s=5.0)
    for name in names:
        made.add(name, name, needs, pinned=name in pinned, keep_alive_s=300.0)
    return made


def loaded(made: PoolBook, name: str, now: float = 0.0) -> None:
    """Ask, load, answer."""
    if made.want(name, now) != [Grant(name)]:
        assert made.loaded(name, now) == [Grant(name)]
    made.release(name, now)


def kinds(actions: list[Action]) -> list[tuple[str, str]]:
    return [(type(action).__name__, action.key) for action in actions]


def test_two_who_ask_at_once_start_it_once_and_both_get_it() -> None:
    made = book("a")
    assert kinds(made.want("a", 0.0)) == [("Load", "a")]
    assert made.want("a", 0.1) == []
    assert made.loaded("a", 1.0) == [Grant("a")]
    entry = made.get("a")
    assert entry is not None
    assert (entry.streams, entry.waiters) == (2, 0)
    assert made.want("a", 2.0) == [Grant("a")]


def test_a_model_among_several_leaves_half_of_what_it_could_use_alone_it_takes_all() -> None:
    made = book("a", budget=1000, needs=Needs(minimal=60, full=500, context=512))
    assert made.want("a", 0.0) == [Load("a", 60 + 220)]
    alone = book("a", budget=1000)
    alone.sharing = False
    assert alone.want("a", 0.0) == [Load("a", 1000)]


def test_models_that_have_been_asked_find_room_beside_each_other() -> None:
    made = book("a", budget=130)
    assert made.want("a", 0.0) == [Load("a", 60 + 20)]
    made.loaded("a", 0.0)
    made.release("a", 0.0)
    made.add("b", "b", NEEDS, pinned=False, keep_alive_s=300.0)
    assert made.want("b", 1.0) == [Unload("a", "evicted")]
    assert made.unloaded("a") == [Load("b", 70)], "no more than leaves 60 for 'a'"
    made.loaded("b", 2.0)
    assert made.want("a", 3.0) == [Load("a", 60)]


def test_a_model_that_makes_itself_quicker_stays_beyond_its_time_but_gives_way() -> None:
    made = book("a", "b", budget=100)
    loaded(made, "a", 0.0)
    made.improving("a", begun=True)
    assert made.tick(300.0) == []
    assert made.next_tick() == 330.0
    assert made.tick(330.0) == []
    made.improving("a", begun=False)
    assert made.tick(360.0) == [Unload("a", "keep_alive")]
    made.unloaded("a")

    loaded(made, "a", 400.0)
    made.improving("a", begun=True)
    assert made.want("b", 401.0) == [Unload("a", "evicted")]
    made.improving("gone", begun=True)


def test_an_idle_model_makes_room_the_least_recently_used_first() -> None:
    made = book("a", "b", "c", budget=130)
    loaded(made, "a", 1.0)
    loaded(made, "b", 2.0)
    loaded(made, "a", 3.0)
    assert made.want("c", 4.0) == [Unload("b", "evicted")]
    assert kinds(made.unloaded("b")) == [("Load", "c")]


def test_a_writing_model_is_waited_for_then_unloaded() -> None:
    made = book("a", "b")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    assert made.want("b", 1.0) == []
    assert made.next_tick() == 11.0
    assert made.release("a", 5.0) == [Unload("a", "evicted")]
    assert kinds(made.unloaded("a")) == [("Load", "b")]


def test_the_wait_is_bounded_and_says_what_is_in_the_way() -> None:
    made = book("a", "b")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    made.want("b", 1.0)
    assert made.tick(10.9) == []
    (action,) = made.tick(11.0)
    assert isinstance(action, Fail)
    assert isinstance(action.error, EngineUnavailable)
    assert "'a' is answering" in action.error.message
    assert action.error.retry_after_s is not None
    assert made.release("a", 12.0) == [], "nobody waits any more, so nothing is unloaded"


def test_what_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    made = book("a", budget=59)
    with pytest.raises(OutOfMemory, match=r"'a' needs .* budget of .*engine\.memory_budget_bytes"):
        made.want("a", 0.0)


def test_pinned_models_that_do_not_fit_together_are_refused_when_they_are_added() -> None:
    made = book("a", pinned=("a",))
    with pytest.raises(OutOfMemory, match="beside the pinned 'a'"):
        made.add("b", "b", NEEDS, pinned=True, keep_alive_s=0.0)
    made.add("c", "c", NEEDS, pinned=False, keep_alive_s=0.0)
    with pytest.raises(OutOfMemory, match="beside the pinned 'a'"):
        made.want("c", 0.0)


def test_room_of_a_pinned_model_that_is_not_loaded_yet_is_kept_for_it() -> None:
    made = book("a", "b", budget=119, pinned=("a",), needs=Needs(minimal=50, full=119, context=512))
    assert made.want("b", 0.0) == [Load("b", 50 + 9)], "half of what is free beyond what 'a' needs"
    assert made.start_pinned() == [Load("a", 55)]


def test_an_idle_pinned_model_is_started_again_with_less_and_never_given_up() -> None:
    made = book("a", "b", budget=120, pinned=("a",))
    made.sharing = False
    assert made.start_pinned() == [Load("a", 120)]
    assert made.loaded("a", 0.0) == []
    made.sharing = True
    assert made.want("b", 1.0) == [Unload("a", "resized")]
    assert made.unloaded("a") == [Load("b", 60), Load("a", 60)]
    made.loaded("b", 2.0)
    assert made.loaded("a", 2.0) == []
    assert made.next_tick() is None, "a pinned model does not expire"


def test_keep_alive_is_the_models_the_latest_requests_or_none() -> None:
    made = book("a")
    loaded(made, "a", 10.0)
    assert made.next_tick() == 310.0
    made.hold("a", 20.0)
    loaded_again = made.want("a", 11.0)
    assert loaded_again == [Grant("a")]
    made.release("a", 12.0)
    assert made.next_tick() == 32.0
    assert made.tick(31.9) == []
    assert made.tick(32.0) == [Unload("a", "keep_alive")]
    made.unloaded("a")
    made.hold("a", 0.0)
    made.want("a", 40.0)
    made.loaded("a", 41.0)
    assert made.release("a", 42.0) == [Unload("a", "keep_alive")]
    made.unloaded("a")
    made.hold("a", FOREVER)
    loaded(made, "a", 50.0)
    assert made.next_tick() is None


def of(**modalities: Modality) -> PoolBook:
    made = PoolBook(180, wait_s=10.0, retry_s=5.0)
    for name, modality in modalities.items():
        made.add(
            name,
            name,
            Needs(minimal=60, full=60, context=512),
            pinned=False,
            keep_alive_s=300.0,
            modality=modality,
        )
    return made


def test_pictures_make_room_before_chat_and_chat_before_voice_whenever_they_were_used() -> None:
    made = of(voice=Modality.VOICE, chat=Modality.CHAT, image=Modality.IMAGE, film=Modality.VIDEO, more=Modality.CHAT)
    for now, name in enumerate(("voice", "chat", "image")):
        loaded(made, name, float(now))
    assert made.want("film", 5.0) == [Unload("image", "evicted")]
    assert made.unloaded("image") == [Load("film", 60)]
    made.loaded("film", 6.0)
    made.release("film", 6.0)
    assert made.want("more", 7.0) == [Unload("film", "evicted")]
    made.unloaded("film")
    made.loaded("more", 8.0)
    made.release("more", 8.0)
    assert made.want("image", 9.0) == [Unload("chat", "evicted")]


def test_who_speaks_waits_before_who_draws() -> None:
    made = of(busy=Modality.CHAT, other=Modality.CHAT, third=Modality.CHAT, image=Modality.IMAGE, voice=Modality.VOICE)
    for name in ("busy", "other", "third"):
        made.want(name, 0.0)
        made.loaded(name, 0.0)
    assert made.want("image", 1.0) == []
    assert made.want("voice", 2.0) == []
    assert made.release("busy", 3.0) == [Unload("busy", "evicted")]
    assert made.unloaded("busy") == [Load("voice", 60)]


def test_who_leaves_while_it_loads_leaves_a_whole_model_that_may_be_evicted_before_it_is_ready() -> None:
    made = book("a", "b")
    made.want("a", 0.0)
    assert made.leave("a") == []
    assert made.want("b", 2.0) == [Unload("a", "evicted")]
    assert made.loaded("a", 2.5) == [], "too late: it is being ended"
    assert kinds(made.unloaded("a")) == [("Load", "b")]


def test_who_leaves_while_it_waits_for_memory_is_out_of_the_queue() -> None:
    made = book("a", "b")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    made.want("b", 1.0)
    made.leave("b")
    assert made.next_tick() is None
    assert made.release("a", 3.0) == []


def test_a_load_that_fails_fails_everyone_and_is_tried_again_after_a_pause() -> None:
    made = book("a")
    made.want("a", 0.0)
    made.want("a", 0.0)
    error = BadModelFile("damaged")
    assert made.failed("a", error, 1.0) == [Fail("a", error)]
    with pytest.raises(BadModelFile, match="damaged") as refused:
        made.want("a", 2.0)
    assert refused.value is not error, "each caller gets an error of its own"
    assert kinds(made.want("a", 6.0)) == [("Load", "a")]


def test_an_engine_that_keeps_failing_is_unloaded_also_under_open_streams() -> None:
    made = book("a")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    assert made.broken("a", EngineUnavailable("gone"), 1.0) == [Unload("a", "failed")]
    assert made.unloaded("a") == []
    assert made.release("a", 2.0) == []
    with pytest.raises(EngineUnavailable):
        made.want("a", 3.0)


def test_who_asks_while_it_is_unloaded_gets_it_again() -> None:
    made = book("a")
    loaded(made, "a", 0.0)
    assert made.tick(300.0) == [Unload("a", "keep_alive")]
    assert made.want("a", 300.1) == []
    assert kinds(made.unloaded("a")) == [("Load", "a")]


def test_a_small_model_may_pass_one_that_waits_for_a_writing_model() -> None:
    made = book("a", "b")
    made.add("small", "small", Needs(minimal=10, full=10, context=512), pinned=False, keep_alive_s=1.0)
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    assert made.want("b", 1.0) == []
    assert made.want("small", 2.0) == [Load("small", 10)]


def test_what_is_being_unloaded_for_the_first_is_not_taken_by_the_next() -> None:
    made = book("a", "b")
    made.add("small", "small", Needs(minimal=10, full=10, context=512), pinned=False, keep_alive_s=1.0)
    loaded(made, "a", 0.0)
    assert made.want("b", 1.0) == [Unload("a", "evicted")]
    assert made.want("small", 2.0) == []
    assert kinds(made.unloaded("a")) == [("Load", "b"), ("Load", "small")]


def test_a_removed_model_ends_what_it_has_and_is_forgotten() -> None:
    made = book("a")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    assert made.retire("a") == []
    with pytest.raises(ModelNotFound):
        made.want("a", 1.0)
    assert made.release("a", 2.0) == [Unload("a", "removed")]
    made.unloaded("a")
    assert made.get("a") is None
    assert made.granted == 0


def test_unloading_by_order_waits_for_the_answers_and_leaves_pinned_ones() -> None:
    made = book("a", "b", budget=200, pinned=("b",))
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    assert made.unload("a") == []
    assert made.release("a", 1.0) == [Unload("a", "keep_alive")]
    made.start_pinned()
    made.loaded("b", 2.0)
    assert made.unload("b") == []


def test_after_closing_nobody_waits_and_nothing_is_loaded() -> None:
    made = book("a", "b")
    made.want("a", 0.0)
    made.loaded("a", 0.0)
    made.want("b", 1.0)
    error = EdgewiseError("end")
    assert made.close(error) == [Fail("b", error)]
    assert [type(action) for action in made.release("a", 2.0)] == []
    made.unloaded("a")
    assert repr(made) == "PoolBook(0 of 100 bytes granted: a=cold, b=waiting)"
