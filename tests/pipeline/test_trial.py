"""Trials of models: what agreement means, what is run, and that only scores come out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgewise.core.errors import EngineFault, InvalidRequest, ModelNotFound
from edgewise.engine.request import GenerateRequest, Priority
from edgewise.pipeline.model import Models, ServedModel
from edgewise.pipeline.recent import TRIAL_KEY, RecentInputs
from edgewise.pipeline.task import ChatInput, Task, TextInput
from edgewise.pipeline.trial import BUILT_IN, run_trial
from edgewise.wire.fleet import TrialArgs
from tests.fakes.engine import FakeEngine, Fault, Script
from tests.fakes.serving import fake_model
from tests.fakes.text import EOS


def steps_of(step: int) -> Script:
    """Each token is the one before and `step`, within the letters: what comes next depends on the last token only."""

    def script(request: GenerateRequest) -> Sequence[int]:
        written, last = [], request.prompt[-1]
        for _ in range(request.sampling.max_tokens):
            last = ord("a") + (last - ord("a") + step) % 26
            written.append(last)
        return written

    return script


def two(baseline: Script, candidate: Script, **fields: object) -> tuple[Models, FakeEngine, FakeEngine]:
    engines = FakeEngine(script=baseline), FakeEngine(script=candidate, **fields)  # type: ignore[arg-type]
    models = [fake_model(engine, name=name) for engine, name in zip(engines, ("old", "new"), strict=True)]
    return Models(models), *engines


ARGS = TrialArgs(candidate="new", baseline="old", prompts=3, tokens=10)


async def test_the_same_model_agrees_everywhere_and_garbage_nowhere() -> None:
    for step, agreement in ((1, 1.0), (2, 0.0)):
        models, _, new = two(steps_of(1), steps_of(step))
        scores = await run_trial(models, ARGS, RecentInputs())
        assert scores.agreement == agreement
        assert (scores.prompts, scores.own) == (3, False)
        assert all(request.key == TRIAL_KEY and request.priority == Priority.BACKGROUND for request in new.requests)


async def test_one_difference_does_not_make_all_that_follows_differ() -> None:
    def stumbles(request: GenerateRequest) -> Sequence[int]:
        right = steps_of(1)(request)
        return [ord("a") if token == ord("g") else token for token in right[:1]] + list(right[1:])

    models, *_ = two(steps_of(1), stumbles)
    recent = RecentInputs()
    recent.note(Task(id="1", model=await models.open("old"), input=TextInput(("xa",))))
    scores = await run_trial(models, ARGS, recent)
    assert (scores.agreement, scores.prompts, scores.own) == (0.9, 1, True)


async def test_what_no_tokenizer_would_write_is_compared_as_it_was_written() -> None:
    def half_characters(request: GenerateRequest) -> Sequence[int]:
        return [0xC3] * request.sampling.max_tokens

    models, *_ = two(half_characters, half_characters)
    assert (await run_trial(models, ARGS, RecentInputs())).agreement == 1.0


async def test_recent_inputs_are_run_newest_first_and_none_is_in_the_scores() -> None:
    models, old, _ = two(steps_of(1), steps_of(1))
    recent = RecentInputs(keep=4)
    for index in range(6):
        recent.note(Task(id=str(index), model=await models.open("old"), input=TextInput((f"secret{index}",))))
    scores = await run_trial(models, ARGS, recent)
    assert [bytes(request.prompt).decode() for request in old.requests] == ["secret5", "secret4", "secret3"]
    assert "secret" not in scores.model_dump_json()


async def test_chats_are_read_through_each_models_own_template() -> None:
    engine, other = FakeEngine(script=steps_of(1)), FakeEngine(script=steps_of(1))
    chat = ChatInput(({"role": "user", "content": "hi"},))
    models = Models([fake_model(engine, name="old"), fake_model(other, name="new", chat=False)])
    recent = RecentInputs()
    recent.note(Task(id="1", model=await models.open("old"), input=chat))
    with pytest.raises(InvalidRequest, match="no chat template"):
        await run_trial(models, ARGS, recent)


async def test_without_a_model_in_use_the_candidate_still_has_to_answer() -> None:
    models = Models([fake_model(FakeEngine(script=steps_of(1)), name="new")])
    scores = await run_trial(models, TrialArgs(candidate="new", prompts=2, tokens=4), RecentInputs())
    assert (scores.agreement, scores.baseline_tokens_per_s, scores.prompts) == (None, None, 2)


async def test_energy_is_told_where_it_is_measured() -> None:
    models, *_ = two(steps_of(1), steps_of(1))
    joules = iter(range(1000))
    scores = await run_trial(models, ARGS, RecentInputs(), meter=lambda: float(next(joules)))
    assert scores.joules_per_token == pytest.approx(1 / 9)  # one between the readings, nine tokens after the first
    assert (await run_trial(models, ARGS, RecentInputs())).joules_per_token is None


async def test_what_fails_says_so() -> None:
    models, *_ = two(steps_of(1), steps_of(1), fault=Fault(0, 2))
    with pytest.raises(EngineFault):
        await run_trial(models, ARGS, RecentInputs())
    with pytest.raises(ModelNotFound):
        await run_trial(models, ARGS.model_copy(update={"candidate": "none"}), RecentInputs())


def test_what_is_remembered() -> None:
    model: ServedModel = fake_model()
    recent = RecentInputs(keep=2)
    same = [Task(id=str(index), model=model, input=TextInput(("a",))) for index in range(3)]
    for task in same:
        recent.note(task)
    assert len(recent) == 1
    recent.note(Task(id="t", model=model, input=TextInput(("b",)), key=TRIAL_KEY))
    recent.note(Task(id="l", model=model, input=TextInput(("c" * 20_000,))))
    assert len(recent) == 1
    assert len(BUILT_IN) == len(set(BUILT_IN)) == TrialArgs.model_fields["prompts"].default
    assert EOS not in model.tokenizer.encode("a")


async def test_what_loading_a_model_takes_is_no_energy_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    models, _, new = two(steps_of(1), steps_of(1))
    drawn, submit = [0.0], new.submit

    async def slow(request: GenerateRequest) -> object:
        drawn[0] += 1000.0
        return await submit(request)

    monkeypatch.setattr(new, "submit", slow)
    scores = await run_trial(models, ARGS, RecentInputs(), meter=lambda: drawn[0])
    assert scores.joules_per_token == 0.0


async def test_tokens_whose_energy_is_unknown_do_not_count_for_it() -> None:
    models, *_ = two(steps_of(1), steps_of(1))
    readings = iter([0.0, 9.0, None, None, 9.0, 18.0] * 100)
    scores = await run_trial(models, ARGS, RecentInputs(), meter=lambda: next(readings))
    assert scores.joules_per_token == pytest.approx(1.0)
