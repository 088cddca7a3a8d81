"""The scheduler driven by random requests and a fake engine: nothing starves, nothing leaks, no answer depends on the load."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from edgewise.engine.request import Priority
from edgewise.engine.scheduler import HOLD_S, StepPlan
from edgewise.engine.sequence import Sequence
from tests.fakes.scheduling import Harness, answer, request

requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=30),
        st.integers(1, 20),
        st.sampled_from(list(Priority)),
        st.sampled_from(["", "tenant"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(requests, st.integers(13, 20))
def test_every_answer_is_that_of_an_idle_engine(
    jobs: list[tuple[list[int], int, Priority, str, int]], pages: int
) -> None:
    harness = Harness(pages=pages)
    for index, (prompt, max_tokens, priority, salt, pause) in enumerate(jobs):
        harness.scheduler.add(request(str(index), prompt, max_tokens, priority=priority, salt=salt))
        for _ in range(pause):
            harness.step()
    harness.drain()
    expected = {str(i): answer(prompt, max_tokens) for i, (prompt, max_tokens, *_rest) in enumerate(jobs)}
    assert harness.done == expected
    assert harness.pool.in_use == 0


@settings(max_examples=100, deadline=None)
@given(requests, st.lists(st.integers(0, 11), max_size=8))
def test_removing_requests_at_any_time_leaks_no_page(
    jobs: list[tuple[list[int], int, Priority, str, int]], victims: list[int]
) -> None:
    harness = Harness(pages=14)
    live: dict[str, Sequence] = {}
    for index, (prompt, max_tokens, priority, salt, pause) in enumerate(jobs):
        live[str(index)] = harness.scheduler.add(request(str(index), prompt, max_tokens, priority=priority, salt=salt))
        for _ in range(pause):
            harness.step()
        if index < len(victims) and str(victims[index]) in live and str(victims[index]) not in harness.done:
            harness.scheduler.remove(live.pop(str(victims[index])))
    harness.drain()
    assert harness.pool.in_use == 0
    for name, tokens in harness.done.items():
        prompt, max_tokens, *_rest = jobs[int(name)]
        assert tokens == answer(prompt, max_tokens)


def test_decoding_streams_come_before_prompts() -> None:
    harness = Harness(pages=64, step_tokens=8)
    harness.scheduler.add(request("a", [1], 60))
    for _ in range(2):
        harness.step()
    harness.scheduler.add(request("b", list(range(40)), 2))
    mixed = 0
    while "b" not in harness.done:
        plan = harness.step()
        assert (plan.work[0].sequence.id, plan.work[0].count) == ("a", 1)
        mixed += plan.prefilling > 0
    assert mixed >= 40 / 8
    assert "a" not in harness.done


def test_urgent_requests_are_admitted_first() -> None:
    harness = Harness(max_running=1)
    harness.scheduler.add(request("slow", [1], 2, priority=Priority.BULK))
    harness.scheduler.add(request("fast", [1], 2, priority=Priority.REALTIME))
    assert harness.step().work[0].sequence.id == "fast"


def test_a_limit_admits_fewer_and_takes_nothing_from_who_runs() -> None:
    harness = Harness(pages=64, max_running=4)
    for name in "abcd":
        harness.scheduler.add(request(name, [1], 8))
    for _ in range(4):
        harness.step()
    running = {sequence.id for sequence in harness.scheduler.running}
    assert running == set("abcd")
    harness.scheduler.limit(1)
    for name in "ef":
        harness.scheduler.add(request(name, [1], 8))
    while running - set(harness.done):
        harness.step()
        assert not set("ef") & {sequence.id for sequence in harness.scheduler.running}
    assert harness.scheduler.preemptions == 0
    while "e" not in harness.done:
        harness.step()
        assert len(harness.scheduler.running) <= 1
    harness.scheduler.limit(9)
    for name in "ghijk":
        harness.scheduler.add(request(name, [1], 8))
    most = 0
    while harness.scheduler.running or harness.scheduler.waiting:
        harness.step()
        most = max(most, len(harness.scheduler.running))
    assert most == 4


def test_an_urgent_request_preempts_nobody_where_the_limit_leaves_it_no_place() -> None:
    harness = Harness(pages=64, max_running=4)
    for name, priority in (("a", Priority.REALTIME), ("b", Priority.BULK)):
        harness.scheduler.add(request(name, [1], 8, priority=priority))
    while len(harness.scheduler.running) < 2:
        harness.step()
    harness.scheduler.limit(1)
    harness.scheduler.add(request("c", [1], 8, priority=Priority.REALTIME))
    harness.step()
    assert harness.scheduler.preemptions == 0
    harness.drain()
    assert set(harness.done) == set("abc")


def test_a_known_prefix_is_not_computed_again() -> None:
    harness = Harness(pages=64, step_tokens=64)
    prompt = list(range(22))
    harness.scheduler.add(request("first", prompt, 1))
    harness.drain()
    second = harness.scheduler.add(request("second", prompt, 1))
    other = harness.scheduler.add(request("other", prompt, 1, salt="b"))
    harness.step()
    assert second.cached_tokens == 20
    assert other.cached_tokens == 0


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    harness = Harness(pages=64, step_tokens=64)
    prompt = list(range(20))
    harness.scheduler.add(request("first", prompt, 8))
    harness.drain()
    second = harness.scheduler.add(request("second", prompt, 1))
    plan = harness.step()
    assert second.cached_tokens == 16
    assert plan.work[0].count == 4


def test_a_full_queue_refuses_with_a_time() -> None:
    harness = Harness(max_running=1, max_waiting=2)
    for name in "abc":
        harness.scheduler.add(request(name, [1]))
    with pytest.raises(QueueFull, match="2 answers may wait beside 1") as refusal:
        harness.scheduler.add(request("d", [1]))
    assert refusal.value.retry_after_s is not None
    assert refusal.value.retry_after_s >= 1.0
    harness.drain()
    harness.scheduler.add(request("d", [1]))


def test_without_a_queue_the_batch_still_fills() -> None:
    harness = Harness(max_running=2, max_waiting=0)
    for name in "ab":
        harness.scheduler.add(request(name, [1]))
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("c", [1]))
    harness.step()
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("c", [1]))
    harness.drain()
    assert sorted(harness.done) == ["a", "b"]


def test_what_can_never_fit_is_refused_naming_both_numbers() -> None:
    harness = Harness(pages=4)
    with pytest.raises(ContextLengthExceeded, match=r"14 tokens.*18 in all.*16"):
        harness.scheduler.add(request("a", [1] * 14, 4))
    with pytest.raises(InvalidRequest, match="no tokens"):
        harness.scheduler.add(request("a", [], 4))
    harness.scheduler.add(request("a", [1] * 12, 4))
    with pytest.raises(InvalidRequest, match="in flight"):
        harness.scheduler.add(request("a", [1], 4))


def test_late_requests_leave_running_or_waiting() -> None:
    harness = Harness(max_running=1)
    harness.scheduler.add(request("runs", [1], 50, deadline_s=5.0))
    harness.scheduler.add(request("waits", [1], 50, deadline_s=2.0))
    harness.step()
    harness.clock.advance(3.0)
    assert [sequence.id for sequence in harness.step().expired] == ["waits"]
    harness.clock.advance(3.0)
    assert [sequence.id for sequence in harness.step().expired] == ["runs"]
    assert harness.pool.in_use == 0


def test_the_least_urgent_is_preempted_and_ends_with_the_same_answer() -> None:
    harness = Harness(pages=8, max_running=4)
    harness.scheduler.add(request("old", [1, 2, 3], 24))
    bulk = harness.scheduler.add(request("bulk", [4, 5, 6], 24, priority=Priority.BULK))
    harness.scheduler.add(request("new", [7, 8, 9], 24))
    harness.drain()
    assert bulk.preemptions >= 1
    assert harness.done["bulk"] == answer([4, 5, 6], 24)
    assert harness.done["old"] == answer([1, 2, 3], 24)


def test_pages_that_left_the_device_come_back_from_a_tier() -> None:
    harness = Harness(pages=64, step_tokens=64, tiered=True)
    prompt = list(range(22))
    harness.scheduler.add(request("first", prompt, 3))
    harness.drain()
    assert len(harness.tiers.settled_names) == 6
    harness.pool.drop_cached()
    assert len(harness.tiers.kept) == 6
    again = harness.scheduler.add(request("again", [*prompt, 1, 2, 3], 3))
    assert len(harness.tiers.asked) == 5 + 6
    harness.drain()
    assert (again.cached_tokens, again.restored_tokens) == (20, 20)
    assert harness.done["again"] == answer([*prompt, 1, 2, 3], 3)
    third = harness.scheduler.add(request("third", [*prompt, 1, 2, 3], 3))
    harness.drain()
    assert (third.cached_tokens, third.restored_tokens) == (24, 0)


def test_a_request_whose_pages_are_coming_waits_but_not_for_long() -> None:
    harness = Harness(pages=64, step_tokens=64, tiered=True)
    held = harness.scheduler.add(request("held", list(range(9)), 3))
    harness.tiers.coming.update(harness.tiers.asked)
    harness.scheduler.add(request("other", [1] * 9, 3))
    for _ in range(5):
        assert "held" not in [work.sequence.id for work in harness.step().work]
    assert "other" in harness.done
    harness.clock.advance(HOLD_S)
    harness.drain()
    assert held.cached_tokens == 0
    assert harness.done["held"] == answer(list(range(9)), 3)


# --- classes -----------------------------------------------------------------------------------------------------------------


def test_a_realtime_request_takes_a_place_at_once() -> None:
    harness = Harness(pages=64, max_running=4, step_tokens=64)
    for index in range(8):
        harness.scheduler.add(request(f"bulk{index}", [index] * 9, 40, priority=Priority.BULK))
    for _ in range(6):
        harness.step()
    harness.scheduler.add(request("now", [50] * 12, 2, priority=Priority.REALTIME))
    plan = harness.step()
    assert [(work.sequence.id, work.count, work.sample) for work in plan.work] == [("now", 12, True)]
    assert harness.scheduler.preemptions == 1
    harness.drain()
    assert all(harness.done[f"bulk{index}"] == answer([index] * 9, 40) for index in range(8))


def test_only_as_many_are_preempted_as_needed_and_nobody_in_vain() -> None:
    harness = Harness(pages=16, max_running=8, step_tokens=64)
    for index in range(3):
        harness.scheduler.add(request(f"bulk{index}", [index] * 10, 2, priority=Priority.BULK))
    harness.scheduler.add(request("chat", [5] * 7, 8))
    harness.step()
    running = [s.id for s in harness.scheduler.running]
    assert running == ["chat", "bulk0", "bulk1", "bulk2"]
    # the pages of all bulk sequences would not be enough beside the other interactive one
    large = harness.scheduler.add(request("large", [6] * 58, 2))
    plan = StepPlan()
    assert not harness.scheduler._admit(large, 0.0, plan)
    assert harness.scheduler.preemptions == 0
    small = harness.scheduler.add(request("small", [7] * 20, 2))
    assert harness.scheduler._admit(small, 0.0, plan)
    assert [s.id for s in harness.scheduler.running] == ["chat", "small", "bulk0", "bulk1"]
    harness.drain()
    assert harness.done["large"] == answer([6] * 58, 2)


def test_equals_do_not_push_each_other_out() -> None:
    harness = Harness(pages=64, max_running=2, step_tokens=64)
    for index in range(6):
        harness.scheduler.add(request(str(index), [index] * 9, 10))
    harness.drain()
    assert harness.scheduler.preemptions == 0


def test_streams_of_lower_classes_sit_out_while_a_realtime_prompt_is_computed() -> None:
    harness = Harness(pages=64, max_running=8, step_tokens=8)
    for name, priority in (("chat", Priority.INTERACTIVE), ("bulk", Priority.BULK)):
        harness.scheduler.add(request(name, [1] * 5, 60, priority=priority))
    while harness.step().decoding < 2:
        pass
    now = harness.scheduler.add(request("now", [2] * 20, 3, priority=Priority.REALTIME))
    steps = []
    while now.generated == 0:
        steps.append({work.sequence.id for work in harness.step().work})
        assert steps[-1] >= {"now"}
        assert "bulk" not in steps[-1]
    assert len(steps) >= 3
    assert ["chat" in names for names in steps] == [bool(index % 2) for index in range(len(steps))]
    assert {work.sequence.id for work in harness.step().work} == {"now", "chat", "bulk"}


def test_a_queue_full_of_bulk_refuses_no_chat() -> None:
    harness = Harness(max_running=1, max_waiting=1)
    for index in range(2):
        harness.scheduler.add(request(f"bulk{index}", [1], priority=Priority.BULK))
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("more", [1], priority=Priority.BULK))
    for index in range(2):
        harness.scheduler.add(request(f"chat{index}", [1]))
    with pytest.raises(QueueFull):
        harness.scheduler.add(request("chat", [1]))
    harness.drain()


def test_bulk_grows_old_and_gets_its_turn() -> None:
    harness = Harness(max_running=1, ageing_s=10.0, step_tokens=64)
    bulk = harness.scheduler.add(request("bulk", [1] * 4, 2, priority=Priority.BULK))
    for index in range(400):
        if len(harness.scheduler.waiting) < 3:
            harness.scheduler.add(request(f"chat{index}", [2] * 4, 2, key="busy"))
        harness.step()
        harness.clock.advance(0.5)
        if "bulk" in harness.done:
            break
    assert bulk.rank == Priority.INTERACTIVE
    assert 20.0 <= harness.clock.monotonic() - bulk.added_at < 30.0


# --- fairness ----------------------------------------------------------------------------------------------------------------


def test_one_request_does_not_wait_for_a_hundred_of_another_key() -> None:
    harness = Harness(pages=64, max_running=2, max_waiting=200, step_tokens=64)
    for index in range(100):
        harness.scheduler.add(request(f"many{index}", [1] * 8, 4, key="many"))
    for _ in range(10):
        harness.step()
    harness.scheduler.add(request("one", [2] * 8, 4, key="one"))
    done_before = len(harness.done)
    while "one" not in harness.done:
        harness.step()
    assert len(harness.done) - done_before <= 4


def test_a_pause_saves_nothing_up() -> None:
    harness = Harness(pages=64, max_running=2, max_waiting=200, step_tokens=64)
    for index in range(40):
        harness.scheduler.add(request(f"a{index}", [1] * 8, 4, key="a"))
    for _ in range(60):
        harness.step()
    for index in range(40):
        harness.scheduler.add(request(f"b{index}", [2] * 8, 4, key="b"))
    order = []
    while not all(f"b{index}" in harness.done for index in range(5)):
        known = set(harness.done)
        harness.step()
        order += [name[0] for name in harness.done if name not in known]
    assert order.count("a") >= 3


def test_a_long_prompt_of_one_key_does_not_hold_up_another_key() -> None:
    harness = Harness(pages=256, max_running=4, max_waiting=200, step_tokens=8)
    harness.scheduler.add(request("long", list(range(100)) * 5, 2, key="a"))
    for _ in range(3):
        harness.step()
    harness.scheduler.add(request("short", [1] * 8, 2, key="b"))
    for _ in range(4):
        harness.step()
    assert "short" in harness.done
    harness.drain()
    assert harness.done["long"] == answer(list(range(100)) * 5, 2)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 24), st.integers(1, 12)), min_size=60, max_size=90),
    st.integers(1, 4),
)
def test_what_busy_keys_have_had_never_differs_by_more_than_a_bound(
    jobs: list[tuple[str, int, int]], running: int
) -> None:
    harness = Harness(pages=200, max_running=running, max_waiting=200, step_tokens=32)
    for index, (key, prompt, max_tokens) in enumerate(jobs):
        harness.scheduler.add(request(str(index), [index] * prompt, max_tokens, key=key))
    bound = 2 * max(24, 2 * 12 * running)
    queue = harness.scheduler.waiting
    while len(queue):
        harness.step()
        had = {s.request.key: queue.had(s) for s in queue}
        if len(had) > 1:
            assert max(had.values()) - min(had.values()) <= bound


# --- spilling ----------------------------------------------------------------------------------------------------------------


def storm(harness: Harness) -> Sequence:
    """A bulk sequence is pushed out by a realtime one that overwrites all its pages."""
    bulk = harness.scheduler.add(request("bulk", list(range(30)), 6, priority=Priority.BULK))
    while bulk.remaining != 1:
        harness.step()
    harness.scheduler.add(request("now", [7] * 50, 3, priority=Priority.REALTIME))
    computed = 0
    while "bulk" not in harness.done:
        computed += sum(work.count for work in harness.step().work if work.sequence is bulk)
    assert harness.done["bulk"] == answer(list(range(30)), 6)
    assert harness.done["now"] == answer([7] * 50, 3)
    assert bulk.preemptions == 1
    assert computed <= 5 or harness.spill.stats().restored == 0
    return bulk


def test_spilled_pages_come_back_without_computing_anything_again() -> None:
    harness = Harness(pages=16, spill_pages=16, step_tokens=64)
    storm(harness)
    stats = harness.spill.stats()
    assert stats.exported == stats.restored > 0
    assert stats.reserved_bytes == 0


def test_without_room_for_spilled_pages_they_are_computed_again() -> None:
    harness = Harness(pages=16, spill_pages=3, step_tokens=64)
    storm(harness)
    assert harness.spill.stats().exported == 0


def test_parked_pages_that_nobody_needs_are_not_moved() -> None:
    harness = Harness(pages=40, max_running=1, spill_pages=40, step_tokens=64)
    harness.scheduler.add(request("bulk", list(range(30)), 6, priority=Priority.BULK))
    harness.step()
    harness.scheduler.add(request("now", [7] * 20, 3, priority=Priority.REALTIME))
    harness.drain()
    assert harness.scheduler.preemptions == 1
    assert harness.spill.stats().exported == 0
    assert harness.done["bulk"] == answer(list(range(30)), 6)


def test_a_cancelled_request_gives_its_parked_pages_back() -> None:
    harness = Harness(pages=16, spill_pages=16, step_tokens=64)
    bulk = harness.scheduler.add(request("bulk", list(range(30)), 6, priority=Priority.BULK))
    harness.step()
    harness.scheduler.add(request("now", [7] * 50, 3, priority=Priority.REALTIME))
    harness.step()
    assert harness.spill.stats().reserved_bytes > 0
    harness.scheduler.remove(bulk)
    assert harness.spill.stats().reserved_bytes == 0
    harness.drain()
    harness.pool.drop_cached()
    assert harness.pool.free == 16
