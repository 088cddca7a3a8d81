"""The API as a shell script uses it: real `curl` against a real service."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from scripts.service import DeviceService
from tests.e2e.client import Client
from tests.e2e.service import STARTER

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(service: DeviceService, path: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--max-time", "120", *args, service.url + path]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=150)


def posting(body: Any) -> list[str]:
    text = body if isinstance(body, str) else json.dumps(body)
    return ["-H", "content-type: application/json", "-d", text]


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": STARTER, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def test_an_answer(service: DeviceService) -> None:
    body = chat("What is the capital of France?", max_completion_tokens=32)
    answer = json.loads(curl(service, "/v1/chat/completions", *posting(body)).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert [stage["where"] for stage in answer["edgewise"]["stages"]] == ["local"]


def test_a_stream(service: DeviceService) -> None:
    body = chat("What is the capital of France?", max_completion_tokens=32, stream=True)
    lines = curl(service, "/v1/chat/completions", "-N", *posting(body)).stdout.split("\n\n")
    payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    events = [json.loads(payload) for payload in payloads[:-1]]
    assert "Paris" in "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons[-1] == "stop"
    assert not any(reasons[:-1])
    assert events[-1]["edgewise"]["model"] == STARTER


def test_a_slow_reader_gets_whole_characters(service: DeviceService) -> None:
    body = chat("Repeat: 日本語 🙂🙃 naïve", temperature=1.5, seed=3, max_completion_tokens=24, stream=True)
    body["logprobs"] = True
    done = subprocess.run(
        ["curl", "-sSN", "--limit-rate", "4000", *posting(body), f"{service.url}/v1/chat/completions"],
        check=True,
        capture_output=True,
        timeout=150,
    )
    text = done.stdout.decode("utf-8")  # raises if a character was cut
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert events
    assert "error" not in events[-1]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (chat("Hello", model="no-such-model"), 404, "model_not_found"),
        (chat("Hello", no_such_field=1), 400, "unknown_parameter"),
        ({**chat("Hello"), "messages": []}, 400, None),
        (chat("word " * 9000), 400, "context_length_exceeded"),
        (chat("word " * 9000, stream=True), 400, "context_length_exceeded"),
        (chat("Hello", top_logprobs=1_000_000, logprobs=True), 400, None),
        (chat("Hello", logit_bias={"99999999": 5}), 400, None),
        (chat("Hello", tools=[{"type": "function", "function": {"description": "no name"}}]), 400, None),
        ("{", 400, None),
        ("[]", 400, None),
    ],
)
def test_errors_have_openais_shape_and_the_service_lives_on(
    service: DeviceService, body: Any, status: int, code: str | None
) -> None:
    done = curl(service, "/v1/chat/completions", "-w", "\n%{http_code}", *posting(body))
    text, _, got = done.stdout.rpartition("\n")
    error = json.loads(text)["error"]
    assert int(got) == status
    assert error.keys() >= {"message", "type", "param", "code"}
    assert code is None or error["code"] == code
    assert curl(service, "/healthz", "--fail").returncode == 0


def test_a_prompt_over_the_context_names_both_numbers(service: DeviceService) -> None:
    message = json.loads(curl(service, "/v1/chat/completions", *posting(chat("word " * 9000))).stdout)["error"][
        "message"
    ]
    assert "8192" in message.replace(",", "")
    assert any(part.strip(".,") >= "9000" for part in message.split() if part.strip(".,").isdigit())


def test_a_client_that_gives_up_frees_its_pages(service: DeviceService, client: Client) -> None:
    body = chat("Write a very long story.", max_completion_tokens=4000, ignore_eos=True)
    done = curl(service, "/v1/chat/completions", "-m", "1", *posting(body), check=False)
    assert done.returncode == 28  # curl's own time-out
    gauges = client.wait_idle(limit_s=1.0)
    assert gauges["pages_free"] + gauges["pages_cached"] == gauges["pages_total"]
