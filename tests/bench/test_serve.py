"""`edgewise bench serve` against a stand-in that misbehaves, and against a real service with a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.main import main
from scripts.service import DeviceService
from tests.e2e.service import import_tiny, new_home, running
from tests.fakes.openai_server import OpenAIServer, Script, openai_server


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as running_server:
        yield running_server


@pytest.fixture(scope="module")
def service() -> Iterator[DeviceService]:
    with new_home(starter=False) as home, running(model=import_tiny(home), home=home) as started:
        yield started


class Bench:
    """`edgewise bench serve` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, url: str, *args: str, code: int = 0) -> tuple[str, str]:
        """Standard output and error of a run that ends with `code`."""
        with pytest.raises(SystemExit) as ended:
            main(["bench", "serve", "--url", url, *args])
        captured = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, captured.err
        return captured.out, captured.err

    def report(self, url: str, *args: str, code: int = 0) -> dict[str, Any]:
        """The JSON."""
        document: dict[str, Any] = json.loads(self.run(url, "--json", *args, code=code)[0])
        return document


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in os.environ:
        if name.startswith("EDGEWISE_"):
            monkeypatch.delenv(name)
    return Bench(capsys)


@pytest.mark.parametrize("loop", [("--concurrency", "3"), ("--rate", "40")])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_real_service_is_measured(loop: tuple[str, str], endpoint: str, service: DeviceService, bench: Bench) -> None:
    flags = ("--requests", "8", "--prompt-tokens", "40:60", "--answer-tokens", "8", "--ignore-eos")
    found = bench.report(service.url, *loop, *flags, "--endpoint", endpoint)
    assert found["requests"] == {"ended": 8, "good": 8, "failed": 0, "unfinished": 0, "errors": {}}
    assert found["tokens"]["answer"] == 64, "as usage counts them"
    assert found["per_second"]["answer_tokens"] == pytest.approx(64 / found["wall_s"], rel=0.01)
    assert 0 < found["time_to_first_token_s"]["p50"] <= found["latency_s"]["max"] <= found["wall_s"]
    assert found["between_chunks_s"]["p50"] <= found["between_chunks_s"]["p99"]
    lengths = found["tokens"]["prompt_per_request"]
    assert 25 <= lengths["p50"] <= lengths["max"] <= 90, "prompts are about as long as asked for"


def test_the_table(service: DeviceService, bench: Bench) -> None:
    out, err = bench.run(service.url, "--requests", "4", "--answer-tokens", "4")
    for words in ("milliseconds", "time to first token", "between chunks", "4 good, 0 failed", "closed loop, 1"):
        assert words in out
    assert "4 of 4 requests ended" in err


def test_errors_are_counted_by_code(server: OpenAIServer, tmp_path: Path, bench: Bench) -> None:
    good = [Script()] * 3  # two to measure words, one to warm up
    bad = [
        Script(status=429, code="rate_limit_exceeded"), Script(status=429, code="rate_limit_exceeded"), Script(status=500),
        Script(error="engine_error"), Script(cut=True), Script(raw=b"data: {\n\n"), Script(raw=b""),
    ]  # fmt: skip
    server.scripts = [*good, *bad]
    out = tmp_path / "out.json"
    found = bench.report(server.url, "--requests", "9", "--out", str(out), code=1)
    assert found["requests"]["errors"] == {
        "429 rate_limit_exceeded": 2, "500": 1, "cut": 2, "malformed": 1, "stream engine_error": 1,
    }  # fmt: skip
    assert (found["requests"]["good"], found["tokens"]["answer"]) == (2, 12)
    assert json.loads(out.read_text()) == found


def test_prompts_are_sized_by_the_servers_own_counts(server: OpenAIServer, bench: Bench) -> None:
    found = bench.report(server.url, "--requests", "3", "--prompt-tokens", "110")
    assert [len(body["messages"][0]["content"].split()) for body in server.bodies[3:]] == [50] * 3, "10 + 2 a word"
    assert found["tokens"]["prompt_per_request"]["mean"] == 110


def test_a_server_without_usage_is_measured_without_tokens(server: OpenAIServer, bench: Bench) -> None:
    server.default = Script(usage=False)
    found = bench.report(server.url, "--requests", "2")
    assert found["per_second"]["answer_tokens"] is None
    assert found["between_chunks_s"] is not None
    assert "not told by the server" in bench.run(server.url, "--requests", "2")[0]


def test_what_requests_carry(server: OpenAIServer, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_API_KEY", "sk-1")
    flags = ("--requests", "1", "--warmup", "0", "--answer-tokens", "5", "--field", "temperature=0", "--model", "m")
    bench.report(server.url, *flags, "--max-field", "max_tokens", "--ignore-eos")
    body = server.bodies[-1]
    assert (body["model"], body["temperature"], body["ignore_eos"], body["max_tokens"]) == ("m", 0, True, 5)
    assert body["stream_options"] == {"include_usage": True}
    assert server.headers[-1]["Authorization"] == "Bearer sk-1"


def test_work_from_a_file(server: OpenAIServer, tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "work.jsonl").write_text('{"prompt": "One"}\n{"prompt": "Two", "answer_tokens": 9}\n')
    bench.report(server.url, "--from", str(tmp_path / "work.jsonl"), "--requests", "4", "--warmup", "0")
    asked = [body["messages"][0]["content"] for body in server.bodies[2:]]
    assert asked == ["One", "Two", "One", "Two"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--rate", "1", "--concurrency", "1"), 2, "not both"),
        (("--rate", "0"), 2, "--rate 0.0 must be above 0"),
        (("--prompt-tokens", "x"), 2, "--prompt-tokens 'x'"),
        (("--endpoint", "x"), 2, "chat, completions"),
        (("--field", "x"), 2, "NAME=JSON"),
        (("--from", "/nowhere"), 2, "cannot be read"),
    ],
)
def test_wrong_options_are_named(
    flags: tuple[str, ...], code: int, message: str, server: OpenAIServer, bench: Bench
) -> None:
    assert message in bench.run(server.url, *flags, code=code)[1]
    assert server.bodies == []


@pytest.mark.parametrize("url", ["localhost:8400", "ftp://x", "http://x?y=1"])
def test_a_url_must_be_a_base_url(url: str, bench: Bench) -> None:
    assert "is no base URL" in bench.run(url, code=2)[1]


@pytest.mark.parametrize("where", ["", "missing/out.json"])
def test_a_place_for_the_report_is_looked_at_before_anything_is_measured(
    where: str, server: OpenAIServer, tmp_path: Path, bench: Bench
) -> None:
    _, err = bench.run(server.url, "--requests", "1", "--out", str(tmp_path / where), code=2)
    assert err == f"edgewise: --out {tmp_path / where} is not a file in a folder that exists.\n"
    assert server.bodies == []


def test_a_server_that_is_not_there_or_refuses_is_told(server: OpenAIServer, bench: Bench) -> None:
    assert "cannot be reached" in bench.run("http://127.0.0.1:1", code=3)[1]
    server.default = Script(status=401, code="invalid_api_key")
    assert "401 invalid_api_key" in bench.run(server.url, "--model", "m", code=3)[1]
    server.models = []
    bench.run(server.url, code=5)


def test_ctrl_c_reports_what_there_is(service: DeviceService) -> None:
    command = [sys.executable, "-m", "edgewise.cli.main", "bench", "serve", "--url", service.url]
    process = subprocess.Popen(
        [*command, "--requests", "400", "--answer-tokens", "4", "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert "40 of 400 requests ended" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "time to first token" in out
    assert "Interrupted" in err
