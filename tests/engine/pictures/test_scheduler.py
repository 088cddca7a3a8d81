"""Whose picture takes the next step, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import QueueFull
from edgewise.core.priority import Priority
from edgewise.engine.pictures.request import DiffuseParams, DiffuseRequest
from edgewise.engine.pictures.scheduler import Job, PictureScheduler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Drawing:
    """A scheduler whose steps all take a second."""

    def __init__(self, *, max_running: int = 8, max_batch: int = 4, max_waiting: int = 100) -> None:
        self.clock = Clock()
        self.order: list[list[str]] = []
        self.scheduler = PictureScheduler(
            max_running=max_running,
            max_batch=max_batch,
            max_waiting=max_waiting,
            now=self.clock,
            ageing_s=60.0,
            step_s=1.0,
        )
        self._made = 0

    def ask(
        self,
        name: str,
        *,
        steps: int = 4,
        shape: object = "small",
        key: str = "",
        priority: Priority = Priority.INTERACTIVE,
        deadline_s: float | None = None,
        cost: float = 1.0,
    ) -> Job:
        self._made += 1
        request = DiffuseRequest(id=name, params=DiffuseParams(prompt=name), key=key, priority=priority)
        job = Job(
            request=request,
            brief=None,
            total=steps,
            step_cost=cost,
            arrival=self._made,
            added_at=self.clock.now,
            deadline_at=None if deadline_s is None else self.clock.now + deadline_s,
            served_at=self.clock.now,
            shape=shape,
        )
        self.scheduler.add(job)
        return job

    def step(self) -> list[str]:
        while (job := self.scheduler.to_begin()) is not None:
            self.scheduler.begun(job)
        group = self.scheduler.group()
        self.clock.now += 1.0
        self.scheduler.charge(group, 1.0)
        for job in group:
            job.done += 1
            if job.left == 0:
                self.scheduler.remove(job)
        self.order.append([job.id for job in group])
        return self.order[-1]

    def run(self) -> list[list[str]]:
        while self.scheduler.running or self.scheduler.waiting:
            self.step()
        return self.order


def test_pictures_of_one_shape_take_their_steps_together() -> None:
    drawing = Drawing()
    for name in "abc":
        drawing.ask(name)
    assert drawing.run() == [["a", "b", "c"]] * 4


def test_other_shapes_take_turns_step_by_step() -> None:
    drawing = Drawing()
    drawing.ask("large", shape="large", steps=4)
    drawing.ask("small", steps=2)
    assert [group[0] for group in drawing.run()] == ["large", "small", "large", "small", "large", "large"]


def test_the_more_urgent_class_comes_first() -> None:
    drawing = Drawing()
    drawing.ask("bulk", priority=Priority.BULK)
    drawing.step()
    late = drawing.ask("realtime", priority=Priority.REALTIME, shape="large", steps=2)
    assert drawing.scheduler.outranked(drawing.scheduler.running)
    assert drawing.run()[1:3] == [["realtime"]] * 2
    assert late.left == 0


def test_an_urgent_picture_is_begun_though_all_places_are_taken() -> None:
    drawing = Drawing(max_running=1)
    drawing.ask("bulk", priority=Priority.BULK)
    drawing.step()
    drawing.ask("also", priority=Priority.BULK)
    assert drawing.scheduler.to_begin() is None
    urgent = drawing.ask("now", priority=Priority.REALTIME)
    assert drawing.scheduler.to_begin() is urgent


def test_a_picture_that_would_miss_its_deadline_goes_before_its_class() -> None:
    drawing = Drawing()
    drawing.ask("calm", shape="large", steps=10)
    drawing.ask("rushed", steps=4, deadline_s=6.0)
    order = [group[0] for group in drawing.run()]
    assert order[0] == "rushed"
    assert order[:6].count("rushed") == 4


def test_many_pictures_of_one_key_do_not_keep_out_another_key() -> None:
    drawing = Drawing(max_batch=1)
    for number in range(6):
        drawing.ask(f"greedy{number}", key="greedy", steps=5, shape=number)
    drawing.ask("modest", key="modest", steps=5, shape="own")
    order = [group[0] for group in drawing.run()]
    assert order.index("modest") <= 1
    assert [name for name in order[:10] if name == "modest"] == ["modest"] * 5


def test_waiting_makes_urgent() -> None:
    drawing = Drawing(max_batch=1)
    drawing.ask("bulk", priority=Priority.BULK, steps=1, shape="other")
    for number in range(400):
        drawing.ask(f"i{number}", steps=1, shape=number) if drawing.scheduler.waiting == [] else None
        if drawing.step() == ["bulk"]:
            break
        drawing.ask(f"j{number}", steps=2, shape=f"j{number}")
    assert ["bulk"] in drawing.order


def test_a_full_queue_says_when_to_come_back() -> None:
    drawing = Drawing(max_waiting=2)
    drawing.ask("a")
    drawing.ask("b")
    with pytest.raises(QueueFull, match="2 pictures wait already") as caught:
        drawing.ask("c")
    assert caught.value.retry_after_s is not None


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.sampled_from("xyz"),
            st.sampled_from("kl"),
            st.sampled_from(Priority),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_picture_is_drawn_to_its_end_whatever_comes(
    asked: list[tuple[int, str, str, Priority, int]], running: int, batch: int
) -> None:
    drawing = Drawing(max_running=running, max_batch=batch)
    jobs = []
    for number, (steps, shape, key, priority, pause) in enumerate(asked):
        jobs.append(drawing.ask(str(number), steps=steps, shape=shape, key=key, priority=priority))
        for _ in range(pause):
            if drawing.scheduler.running or drawing.scheduler.waiting:
                drawing.step()
    drawing.run()
    assert all(job.left == 0 for job in jobs)
    assert all(1 <= len(group) <= batch for group in drawing.order)


def test_a_step_that_was_predicted_costs_nothing_and_says_nothing_of_the_next() -> None:
    drawing = Drawing()
    saving = drawing.ask("saving", steps=8, key="a")
    drawing.ask("whole", steps=8, key="b", shape="large")
    saving.spared = True
    assert [drawing.step() for _ in range(2)] == [["saving"], ["whole"]]
    drawing.scheduler.step_s = 7.0
    assert [drawing.step() for _ in range(4)] == [["saving"]] * 4
    assert drawing.scheduler.step_s == 7.0
    saving.spared = False
    assert drawing.step() == ["saving"]
    assert drawing.scheduler.step_s < 7.0
    assert drawing.step() == ["whole"]
