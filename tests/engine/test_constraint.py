"""Answers of a tiny real model held to grammars: the hardest case, since random weights want nothing in particular."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from edgewise.core.errors import UnsupportedField
from edgewise.engine import constraint as constraint_module
from edgewise.engine.build import build
from edgewise.engine.constraint import Constraints
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.vocabulary import Vocabulary
from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.pipeline.structured.lark import constraint
from edgewise.pipeline.structured.rules import rules_of
from edgewise.pipeline.structured.vocabulary import vocabulary_of
from edgewise.pipeline.task import AnswerFormat
from tests.engine.test_engine import config_of, run
from tests.pipeline.structured.test_schema import CORPUS


def grammar(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f'%llguidance {{"no_forcing": true}}\nstart: {text}'}]})


@pytest.fixture(scope="module")
def tokenizer(tiny_model: ModelFiles) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def engine(tiny_model: ModelFiles, tokenizer: Tokenizer) -> Iterator[Engine]:
    core = build(config_of(tiny_model, vocabulary=vocabulary_of(tokenizer)), lambda phase, done: None)
    yield core
    core.close()


@pytest.fixture
def ask(tokenizer: Tokenizer) -> Callable[..., GenerateRequest]:
    def make(name: str, rules: str | None, **sampling: object) -> GenerateRequest:
        options: dict[str, object] = {
            "max_tokens": 64,
            "temperature": 1.0,
            "seed": 1,
            "stop_token_ids": tuple(sorted(tokenizer.eos_ids)),
            **sampling,
        }
        params = SamplingParams(**options)  # type: ignore[arg-type]
        return GenerateRequest(id=name, prompt=(5, 6, 7), sampling=params, constraint=rules)

    return make


WORD = grammar("/(red|green|blue) [0-9]{3,8}/")


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_an_answer_follows_its_grammar_and_ends_with_it(
    engine: Engine, tokenizer: Tokenizer, ask: Callable[..., GenerateRequest], temperature: float
) -> None:
    requests = [ask(f"{seed}", WORD, seed=seed, temperature=temperature) for seed in range(8)]
    answers = run(engine, *requests)
    texts = [tokenizer.decode(tokens) for tokens, _ in answers.values()]
    assert all(text.split(" ")[0] in ("red", "green", "blue") and text.split(" ")[1].isdecimal() for text in texts)
    assert {last.finish for _, last in answers.values()} == {"stop"}
    assert len(set(texts)) == (1 if temperature == 0 else 8)


def test_free_neighbours_keep_their_tokens(engine: Engine, ask: Callable[..., GenerateRequest]) -> None:
    alone = run(engine, ask("free", None))["free"][0]
    crowd = run(engine, ask("held", WORD), ask("free", None), ask("also", WORD, seed=3))
    assert crowd["free"][0] == alone


def test_an_answer_cut_anywhere_goes_on_inside_its_grammar(engine: Engine, ask: Callable[..., GenerateRequest]) -> None:
    request = ask("whole", WORD, seed=7)
    whole = run(engine, request)["whole"][0]
    for cut in range(len(whole)):
        rest = run(engine, replace(request, id=f"cut{cut}", output=tuple(whole[:cut])))[f"cut{cut}"][0]
        assert whole[:cut] + rest == whole


def test_log_probabilities_are_those_of_the_model_itself(engine: Engine, ask: Callable[..., GenerateRequest]) -> None:
    free = run(engine, ask("free", None, top_logprobs=5, max_tokens=1))["free"][1]
    held = run(engine, ask("held", WORD, top_logprobs=5, max_tokens=1))["held"][1]
    assert free.logprobs is not None
    assert held.logprobs is not None
    assert held.logprobs[0].top == free.logprobs[0].top
    assert held.logprobs[0].logprob < max(logprob for _, logprob in free.logprobs[0].top)


def test_a_dead_end_is_an_error_that_says_so(engine: Engine, ask: Callable[..., GenerateRequest]) -> None:
    last = run(engine, ask("dead", grammar('"a" dead\ndead: dead "b"')))["dead"][1]
    assert (last.finish, last.error_code) == ("error", "constraint_failed")
    assert "cannot go on inside the grammar" in (last.error_message or "")
    assert run(engine, ask("next", WORD))["next"][1].finish == "stop"


def test_min_tokens_gives_way_to_the_end_of_the_grammar(
    engine: Engine, tokenizer: Tokenizer, ask: Callable[..., GenerateRequest]
) -> None:
    tokens, last = run(engine, ask("short", grammar('"ab"'), min_tokens=40))["short"]
    assert (tokenizer.decode(tokens), last.finish) == ("ab", "stop")


def test_without_a_vocabulary_a_grammar_is_refused(tiny_model: ModelFiles, ask: Callable[..., GenerateRequest]) -> None:
    core = build(config_of(tiny_model), lambda phase, done: None)
    with pytest.raises(UnsupportedField):
        core.add(ask("r", WORD))
    assert not core.has_work
    core.close()


def test_nobody_waits_for_a_grammar_of_another(
    engine: Engine, ask: Callable[..., GenerateRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.add(ask("running", WORD, seed=3))
    running: list[TokenChunk] = []
    while not running:
        running += engine.step()
    go_on = threading.Event()
    compile_ = constraint_module._compile

    def slow(*parts: Any) -> Any:
        assert go_on.wait(120)
        return compile_(*parts)

    monkeypatch.setattr(constraint_module, "_compile", slow)
    for name in ("slow", "cancelled", "late"):
        deadline = 0.001 if name == "late" else None
        engine.add(replace(ask(name, grammar(f'"{name}" /[0-9]{{3}}/')), deadline_s=deadline))
    engine.add(ask("free", None, max_tokens=8))
    engine.cancel("cancelled")
    ends: dict[str, TokenChunk] = {}
    while ends.keys() != {"running", "free", "cancelled", "late"}:
        ends |= {chunk.request_id: chunk for chunk in engine.step() if chunk.finish}
        assert not go_on.is_set()
    assert ends["late"].error_code == "deadline_exceeded"
    assert engine.stats().waiting == 1
    go_on.set()
    while engine.has_work:
        ends |= {chunk.request_id: chunk for chunk in engine.step() if chunk.finish}
    assert ends["slow"].finish == "stop"
    assert repr(engine._runner.constraints).startswith("Constraints(open=0")


def test_a_grammar_that_nobody_wants_any_more_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Vocabulary(spellings=(b"<end>", *(bytes([byte]) for byte in range(256))), special=(0,), eos=(0,))
    constraints = Constraints(table)
    go_on = threading.Event()
    compiled: list[str] = []

    def slow(tokenizer: Any, text: str) -> Any:
        assert go_on.wait(120)
        compiled.append(text)

    monkeypatch.setattr(constraint_module, "_compile", slow)
    first = constraints.open("first", grammar('"a"'))
    for number in range(20):
        constraints.open(f"{number}", grammar(f'"{number}"'))
        constraints.close(f"{number}")
    kept = [constraints.open(name, grammar('"b"')) for name in ("x", "y")]
    constraints.close("x")
    go_on.set()
    for future in (first, *kept):
        future.result(30)
    assert compiled == [grammar('"a"'), grammar('"b"')]
    constraints.stop()


def test_compiled_grammars_are_kept_within_a_bound() -> None:
    table = Vocabulary(spellings=(b"<end>", *(bytes([byte]) for byte in range(256))), special=(0,), eos=(0,))
    constraints = Constraints(table)
    for number in range(40):
        constraints.open(f"{number}", grammar(f'"{number}"'))
        mask = constraints.begin(f"{number}", ())
        assert mask is not None
        assert mask.result().bits[(ord(str(number)[0]) + 1) // 8]
        constraints.close(f"{number}")
    assert repr(constraints) == "Constraints(open=0, compiled=8)"
    assert constraints.begin("0", ()) is None
    constraints.stop()


def test_sampled_answers_validate_against_their_schemas(
    engine: Engine, tokenizer: Tokenizer, ask: Callable[..., GenerateRequest]
) -> None:
    rules = {
        name: constraint(rules_of(AnswerFormat(kind="json_schema", value=schema))) for name, schema in CORPUS.items()
    }
    requests = [
        ask(f"{name}/{seed}", text, seed=seed, max_tokens=400) for name, text in rules.items() for seed in range(2)
    ]
    answers = run(engine, *requests)
    assert {last.finish for _, last in answers.values()} == {"stop"}
    for name, (tokens, _) in answers.items():
        schema = CORPUS[name.split("/")[0]]
        jsonschema.Draft202012Validator(schema).validate(json.loads(tokenizer.decode(tokens)))


def test_an_enum_behind_a_reference_keeps_to_its_values(
    engine: Engine, tokenizer: Tokenizer, ask: Callable[..., GenerateRequest]
) -> None:
    schema = {"$ref": "#/$defs/c", "$defs": {"c": {"enum": ["rot", "grün", "蓝", "🟥", 'a"\\b']}}}
    text = constraint(rules_of(AnswerFormat(kind="json_schema", value=schema)))
    answers = run(engine, *(ask(f"{seed}", text, seed=seed) for seed in range(100)))
    drawn = {json.loads(tokenizer.decode(tokens)) for tokens, _ in answers.values()}
    assert drawn <= {"rot", "grün", "蓝", "🟥", 'a"\\b'}
    assert len(drawn) > 1
