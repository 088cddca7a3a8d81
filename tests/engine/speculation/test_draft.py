"""A draft model writes ahead: the answers are the model's own, whatever the draft model thinks, and its pages come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ConfigError
from edgewise.engine import build as building
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest
from edgewise.engine.sequence import Sequence
from edgewise.engine.speculation.draft import DraftModel
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from tests.engine.speculation.test_answers import ask, engine_of, run, varied


def draft_of(core: Engine) -> DraftModel:
    draft = core._scheduler.speculator._draft  # type: ignore[union-attr]
    assert isinstance(draft, DraftModel)
    return draft


def drafting(model: ModelFiles, draft: ModelFiles, **changes: Any) -> Engine:
    return engine_of(model, speculation="draft", draft=draft, **changes)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return local_files(make_tiny_model(tmp_path_factory.mktemp("other"), seed=5, layers=1))


def requests(vocab: int) -> list[GenerateRequest]:
    return [*varied(vocab), ask("long", 50, vocab, temperature=0.9, max_tokens=70)]


def test_a_draft_that_thinks_alike_is_right_at_any_temperature(tiny_model: ModelFiles) -> None:
    plain, core = engine_of(tiny_model, speculation="off"), drafting(tiny_model, tiny_model)
    for temperature in (0.0, 1.0):
        request = ask("a", 3, 400, temperature=temperature, max_tokens=60)
        expected, got = run(plain, [request])["a"], run(core, [request])["a"]
        assert got.told == expected.told
        assert got.most == 5
    stats = core.stats()
    assert stats.accepted_tokens == stats.proposed_tokens > 80
    assert core.memory().booked["draft"] > 0
    plain.close()
    core.close()


def test_answers_are_the_models_own_whatever_is_drafted(tiny_model: ModelFiles, other: ModelFiles) -> None:
    plain, core = engine_of(tiny_model, speculation="off"), drafting(tiny_model, other)
    asked = requests(plain.info.vocab_size)
    expected, got = run(plain, asked), run(core, asked)
    assert {name: one.told for name, one in got.items()} == {name: one.told for name, one in expected.items()}
    assert core.stats().accepted_tokens < core.stats().proposed_tokens
    assert draft_of(core)._mirrors == {}
    assert draft_of(core)._pages.in_use == 0
    resumed = replace(asked[-1], id="rest", output=tuple(expected["long"].tokens[:30]))
    assert run(core, [resumed])["rest"].tokens == expected["long"].tokens[30:]
    plain.close()
    core.close()


def test_who_finds_no_room_goes_without(tiny_model: ModelFiles) -> None:
    plain, core = engine_of(tiny_model, speculation="off"), drafting(tiny_model, tiny_model)
    draft = draft_of(core)
    taken = draft._pages.allocate(draft._pages.free - 3)
    assert taken is not None
    asked = [ask(str(seed), seed, 400, temperature=1.0, max_tokens=50, min_tokens=50) for seed in range(4)]
    expected, got = run(plain, asked), run(core, asked)
    assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in expected.items()}
    assert 0 < core.stats().accepted_tokens < 4 * 40
    assert draft._pages.in_use == len(taken)
    plain.close()
    core.close()


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_whoever_outgrows_the_drafts_context_goes_on_without(
    tiny_model: ModelFiles, tmp_path: Path, kernels: str
) -> None:
    short = local_files(make_tiny_model(tmp_path / "short", context=64), name="short")
    plain = engine_of(tiny_model, speculation="off", kernels=kernels)
    core = drafting(tiny_model, short, kernels=kernels)
    vocab = plain.info.vocab_size
    asked = [
        replace(ask("long", 1, vocab), prompt=tuple(range(100))),
        ask("grows", 2, vocab, temperature=1.0, max_tokens=90, min_tokens=90),
    ]
    expected, got = run(plain, asked), run(core, asked)
    assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in expected.items()}
    assert len(asked[1].prompt) < 64 < len(asked[1].prompt) + 90
    assert core.stats().proposed_tokens > 0
    assert draft_of(core)._pages.in_use == 0
    plain.close()
    core.close()


def test_what_was_drafted_wrongly_is_computed_again(tiny_model: ModelFiles) -> None:
    core = drafting(tiny_model, tiny_model)
    draft = draft_of(core)
    sequence = Sequence.of(ask("a", 3, 400, temperature=1.0, max_tokens=60), arrival=0, now=0.0)
    (first,) = draft.guess([sequence], [6])
    sequence.tokens += [first[0], (first[1] + 1) % 400, 7]
    (second,) = draft.guess([sequence], [8])
    draft.forget("a")
    assert draft.guess([sequence], [8]) == [second]
    assert len(second) == 8
    core.close()


def test_another_vocabulary_is_refused_by_name(tiny_model: ModelFiles, tmp_path: Path) -> None:
    larger = local_files(make_tiny_model(tmp_path / "larger", vocab=600), name="larger")
    with pytest.raises(ConfigError, match=r"larger has a vocabulary of 600, tiny one of 512"):
        drafting(tiny_model, larger)


def test_no_memory_is_kept_where_bits_depend_on_the_batch(
    tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is measured once the model is loaded."""
    monkeypatch.setattr(building, "tiles_invariant", lambda device: False)
    core = drafting(tiny_model, tiny_model, kernels="reference")
    assert core._scheduler.speculator is None
    assert "draft" not in core.memory().booked
    core.close()


def test_auto_drafts_while_it_pays(tiny_model: ModelFiles) -> None:
    core = engine_of(tiny_model, speculation="auto", draft=tiny_model)
    plain = engine_of(tiny_model, speculation="off")
    request = ask("a", 3, 400, temperature=1.0, max_tokens=200)
    assert run(core, [request])["a"].tokens == run(plain, [request])["a"].tokens
    core.close()
    plain.close()
