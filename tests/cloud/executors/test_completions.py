"""What a server is asked, by what it is known to honour."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.cloud.executors.completions import UpstreamModel, asking, told_error, whole_characters
from edgewise.core.errors import ConfigError, EngineUnavailable, QueueFull
from edgewise.wire.messages import GenerateWork

DIGEST = "sha256:" + "0" * 64
EVERYTHING: dict[str, Any] = {
    "max_tokens": 50,
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "logit_bias": {5: 1.0},
    "seed": 2**64 - 1,
    "min_tokens": 4,
    "stop_token_ids": (2, 3),
    "top_logprobs": 3,
}


def ask(owned_by: str, *, spent: int | None = 0, digest: str | None = None, **sampling: Any) -> tuple[Any, Any]:
    work = GenerateWork(model="m", digest=DIGEST, text="x", sampling=EVERYTHING | sampling)
    asked = asking(work, UpstreamModel(id="m", owned_by=owned_by, digest=digest), spent=spent)
    return asked.fields, asked.left_out


def test_another_appliance_with_the_same_model_honours_everything() -> None:
    fields, left_out = ask("edgewise", digest=DIGEST)
    assert left_out == {}
    assert fields == {
        "model": "m",
        "max_tokens": 50,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "logit_bias": {"5": 1.0},
        "seed": -1,
        "min_tokens": 4,
        "stop_token_ids": [2, 3],
        "logprobs": 3,
    }


def test_a_server_that_is_not_known_gets_openais_fields_only_and_the_rest_is_named() -> None:
    fields, left_out = ask("organization-owner")
    assert set(left_out) == {"top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "logit_bias"}
    assert not set(left_out) & set(fields)


def test_names_of_other_servers() -> None:
    assert ask("llamacpp")[0]["repeat_penalty"] == 1.1
    assert ask("vllm")[0]["add_special_tokens"] is False
    assert ask("vllm", stop_token_ids=())[0]["ignore_eos"] is True


def test_neutral_values_are_not_sent() -> None:
    fields, left_out = ask("", top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, min_tokens=0)
    assert not {"top_k", "min_p", "repetition_penalty", "presence_penalty", "min_tokens"} & (
        set(fields) | set(left_out)
    )


def test_limits_beyond_what_servers_take_are_named() -> None:
    fields, left_out = ask("edgewise", digest=DIGEST, temperature=3.0, top_logprobs=20)
    assert (fields["temperature"], fields["logprobs"]) == (2.0, 5)
    assert set(left_out) == {"temperature", "top_logprobs"}


def test_what_is_spent_is_taken_off_both_limits() -> None:
    fields, _ = ask("edgewise", digest=DIGEST, spent=3)
    assert (fields["max_tokens"], fields["min_tokens"]) == (47, 1)
    assert "min_tokens" not in ask("edgewise", digest=DIGEST, spent=4)[0]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({"id": "a", "max_model_len": 4096, "owned_by": "vllm"}, UpstreamModel(id="a", owned_by="vllm", context=4096)),
        ({"id": "a", "meta": {"n_ctx_train": 8}}, UpstreamModel(id="a", context=8)),
        (
            {"id": "a", "edgewise": {"digest": DIGEST, "context": None}, "owned_by": "edgewise"},
            UpstreamModel(id="a", owned_by="edgewise", digest=DIGEST),
        ),
        ({"id": 7}, None),
        ("a", None),
    ],
)
def test_models_as_servers_list_them(listed: Any, expected: UpstreamModel | None) -> None:
    assert UpstreamModel.read(listed) == expected


def test_errors_say_what_they_mean_for_the_job() -> None:
    assert isinstance(told_error({"error": {"message": "no"}}, 403, None), ConfigError)  # our key, not the device's
    assert told_error({"error": {"message": "no"}}, 500, None).retryable
    full = told_error({"error": {"code": "rate_limit_exceeded", "message": "no"}}, 200, 3.0)
    assert isinstance(full, QueueFull)
    assert full.retry_after_s == 3.0
    assert isinstance(told_error("a page", 502, None), EngineUnavailable)


def test_halves_of_characters_are_joined_or_replaced() -> None:
    assert whole_characters("a\ud83d\ude00b") == "a\U0001f600b"
    assert whole_characters("a\ud83db") == "a\ufffdb"
