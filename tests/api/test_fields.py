"""Every field of OpenAI's document and every extension: honoured, listed as ignored, or refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from edgewise.api.deps import Limits
from edgewise.api.fields import CHAT_IGNORED, CHAT_REFUSED, COMPLETION_IGNORED, COMPLETION_REFUSED, EXTENSIONS
from edgewise.api.schemas import ChatBody, CompletionBody
from edgewise.engine.request import SamplingParams
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api, prompt

ROUTES = [(CHAT, hello), (COMPLETIONS, prompt)]
both = pytest.mark.parametrize(("route", "body"), ROUTES)


def document(*types: Any) -> set[str]:
    return {name for one in types for name in get_type_hints(one)}


def test_the_schemas_have_every_field_of_the_document_and_the_extensions_only() -> None:
    chat = document(
        chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming
    )
    text = document(
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    )
    assert set(ChatBody.model_fields) == chat | set(EXTENSIONS) | {"max_image_pixels", "pan_and_scan"}
    assert set(CompletionBody.model_fields) == text | set(EXTENSIONS)


@both
async def test_sampling_fields_reach_the_engine(route: str, body: Any) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": 1.5,
        "frequency_penalty": -1.5,
        "logit_bias": {"65": -100, "66": 2.5},
        "seed": 9,
        "max_tokens": 12,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "min_tokens": 3,
        "stop_token_ids": [5],
    }
    api = make_api()
    answer = await api.answer(route, body(**fields))
    drawn = api.engine.requests[-1].sampling
    assert drawn == SamplingParams(
        **fields | {"logit_bias": {65: -100.0, 66: 2.5}, "stop_token_ids": (5, 257)},  # type: ignore[arg-type]
        top_logprobs=None,
    )
    assert answer["edgewise"]["ignored"] == []


@both
async def test_null_means_not_given(route: str, body: Any) -> None:
    schema = ChatBody if route == CHAT else CompletionBody
    nulls = dict.fromkeys(set(schema.model_fields) - {"model", "messages", "prompt"})
    api = make_api()
    answer = await api.answer(route, body(**nulls))
    assert answer["edgewise"]["ignored"] == []
    assert api.engine.requests[-1].sampling.temperature == 1.0


@pytest.mark.parametrize("name", sorted(CHAT_IGNORED))
async def test_ignored_chat_fields_are_listed(name: str) -> None:
    answer = await make_api().answer(CHAT, hello(**{name: {"any": "thing"}}))
    assert answer["edgewise"]["ignored"] == [name]


@pytest.mark.parametrize("name", sorted(COMPLETION_IGNORED))
async def test_ignored_completion_fields_are_listed(name: str) -> None:
    answer = await make_api().answer(COMPLETIONS, prompt(**{name: "x"}))
    assert answer["edgewise"]["ignored"] == [name]


REFUSED: list[tuple[str, Any]] = [
    ("function_call", {"name": "f"}),
    ("functions", [{"name": "f"}]),
    ("moderation", {"model": "m"}),
    ("reasoning_effort", "high"),
    ("verbosity", "low"),
    ("web_search_options", {}),
]
HARMLESS: list[tuple[str, Any]] = [
    ("function_call", "none"),
    ("functions", []),
    ("modalities", ["text"]),
    ("reasoning_effort", "none"),
    ("verbosity", "medium"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
async def test_chat_fields_that_would_change_the_answer_are_refused_by_name(name: str, value: Any) -> None:
    error = await make_api().refusal(CHAT, hello(**{name: value}))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert f"'{name}'" in error["message"]


def test_every_refused_field_is_tried_above() -> None:
    assert {name for name, _ in REFUSED} == set(CHAT_REFUSED)
    assert set(COMPLETION_REFUSED) == {"best_of", "suffix"}


@pytest.mark.parametrize(("name", "value"), HARMLESS)
async def test_values_that_ask_for_nothing_are_let_through(name: str, value: Any) -> None:
    await make_api().answer(CHAT, hello(**{name: value}))


@pytest.mark.parametrize(
    ("fields", "ok"),
    [
        ({"suffix": "."}, False),
        ({"suffix": ""}, True),
        ({"best_of": 3}, False),
        ({"best_of": 1}, True),
        ({"best_of": 3, "n": 3}, True),
        ({"best_of": 3, "n": 2}, False),
    ],
)
async def test_completion_fields_are_refused_when_they_matter(fields: dict[str, Any], ok: bool) -> None:
    if ok:
        await make_api().answer(COMPLETIONS, prompt(**fields))
    else:
        error = await make_api().refusal(COMPLETIONS, prompt(**fields))
        assert error["code"] == "unsupported_parameter"
        assert error["param"] in fields


@both
@pytest.mark.parametrize("name", ["surprise", "max_output_tokens", "Temperature", "__class__", "é" * 300])
async def test_unknown_fields_are_refused_by_name(route: str, body: Any, name: str) -> None:
    error = await make_api().refusal(route, body(**{name: 1}))
    assert (error["code"], error["param"]) == ("unknown_parameter", name[:200])


WRONG: list[tuple[str, Any, str]] = [
    ("model", 5, "invalid_type"),
    ("model", None, "invalid_type"),
    ("stream", "yes", "invalid_type"),
    ("stream_options", [], "invalid_type"),
    ("stream_options", {"include_usage": True}, "invalid_value"),  # without stream
    ("n", 0, "invalid_value"),
    ("n", 129, "invalid_value"),
    ("n", True, "invalid_type"),
    ("n", 1.5, "invalid_type"),
    ("stop", 5, "invalid_type"),
    ("stop", [1], "invalid_type"),
    ("stop", "", "invalid_value"),
    ("stop", ["a", ""], "invalid_value"),
    ("stop", ["a", "b", "c", "d", "e"], "invalid_value"),
    ("stop", "x" * 4097, "invalid_value"),
    ("seed", 1.5, "invalid_type"),
    ("seed", 2**64, "invalid_value"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", "9", "invalid_type"),
    ("temperature", -0.1, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", "hot", "invalid_type"),
    ("top_p", 1.1, "invalid_value"),
    ("presence_penalty", 2.5, "invalid_value"),
    ("frequency_penalty", -2.5, "invalid_value"),
    ("logit_bias", {"99999999": 5}, "invalid_value"),
    ("logit_bias", {"x": 5}, "invalid_value"),
    ("logit_bias", {"5": 101}, "invalid_value"),
    ("logit_bias", {"5": "1"}, "invalid_type"),
    ("logit_bias", [5], "invalid_type"),
    ("top_k", -1, "invalid_value"),
    ("min_p", 1, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"),
    ("repetition_penalty", 5e-324, "invalid_value"),  # divides logits to infinity
    ("min_tokens", -1, "invalid_value"),
    ("stop_token_ids", [512], "invalid_value"),
    ("stop_token_ids", ["a"], "invalid_type"),
    ("timeout", 0, "invalid_value"),
    ("timeout", 1e9, "invalid_value"),
]


@both
@pytest.mark.parametrize(("name", "value", "code"), WRONG)
async def test_wrong_values_are_refused_by_name(route: str, body: Any, name: str, value: Any, code: str) -> None:
    error = await make_api().refusal(route, body(**{name: value}))
    assert error["param"].startswith(name)
    assert error["code"] == code
    assert name in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("n", 200, "'n' is 200: it must be at most 128."),
        ("temperature", -0.5, "'temperature' is -0.5: it must be at least 0."),
        ("timeout", 0, "'timeout' is 0: it must be above 0."),
        ("min_p", 1.5, "'min_p' is 1.5: it must be below 1."),
        ("seed", 2**64, f"'seed' is {2**64}: it must be at most {2**64 - 1}."),
        ("messages", [], "'messages' is empty: it needs at least one element."),
    ],
)
async def test_a_refused_value_is_named_with_its_limit(field: str, value: Any, rule: str) -> None:
    assert (await make_api().refusal(CHAT, hello(**{field: value})))["message"] == rule


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 1_000_000, "logprobs": True},
        {"top_logprobs": -1, "logprobs": True},
        {"top_logprobs": 2},
        {"logprobs": 1},
        {"max_tokens": 3, "max_completion_tokens": 3},
    ],
)
async def test_combinations_that_a_chat_refuses(fields: dict[str, Any]) -> None:
    api = make_api()
    error = await api.refusal(CHAT, hello(**fields))
    assert error["param"] in fields
    assert (await api.get("/healthz")).status_code == 200


@both
async def test_a_model_is_required(route: str, body: Any) -> None:
    sent = body()
    del sent["model"]
    error = await make_api().refusal(route, sent)
    assert (error["code"], error["param"]) == ("missing_required_parameter", "model")


@both
@pytest.mark.parametrize("name", ["nope", "", "../../x", "%2e%2e/", "a\0b", "é" * 300])
async def test_an_unknown_model(route: str, body: Any, name: str) -> None:
    error = await make_api().refusal(route, body(model=name), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@both
async def test_an_alias_answers_with_the_models_name(route: str, body: Any) -> None:
    assert (await make_api().answer(route, body(model="starter")))["model"] == "tiny"


@both
async def test_too_large_a_top_k_is_clamped(route: str, body: Any) -> None:
    api = make_api()
    await api.answer(route, body(top_k=9_999_999))
    assert api.engine.requests[-1].sampling.top_k == 512


@both
async def test_top_p_zero_keeps_the_most_probable_token(route: str, body: Any) -> None:
    api = make_api()
    await api.answer(route, body(top_p=0))
    assert 0 < api.engine.requests[-1].sampling.top_p < 1e-6


@both
async def test_a_negative_seed_is_the_same_bits(route: str, body: Any) -> None:
    api = make_api()
    answer = await api.answer(route, body(seed=-1))
    assert api.engine.requests[-1].sampling.seed == answer["edgewise"]["seed"] == 2**64 - 1


@both
async def test_timeout_is_the_engines_deadline_within_the_services(route: str, body: Any) -> None:
    api = make_api()
    await api.answer(route, body(timeout=2.5))
    assert api.engine.requests[-1].deadline_s == 2.5
    bounded = make_api(limits=Limits(request_timeout_s=10))
    await bounded.answer(route, body(timeout=20))
    await bounded.answer(route, body())
    assert [request.deadline_s for request in bounded.engine.requests] == [10, 10]
