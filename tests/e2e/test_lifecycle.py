"""Start, faults and end of a real service: kill -9 of either process, SIGTERM in mid-stream, damaged starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from scripts.service import DeviceService, ServiceError, edgewise_command, edgewise_environment, free_port
from scripts.sse import Answer, StreamError
from tests.e2e.client import Client, text_of
from tests.e2e.service import STARTER, new_home, running

STORY = "Tell me a long story about a lighthouse keeper."


def gone(pid: int, limit_s: float = 10.0) -> bool:
    """Whether a process ends within the limit; a zombie has ended."""
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_an_engine_killed_while_idle_is_replaced() -> None:
    with running() as service, Client(service.url, model=STARTER) as client:
        before = text_of(client.chat("Name a colour.", temperature=0, max_completion_tokens=12))
        first = service.engine_pid()
        os.kill(first, signal.SIGKILL)
        assert text_of(client.chat("Name a colour.", temperature=0, max_completion_tokens=12)) == before
        assert service.engine_pid() != first
        assert gone(first)
        assert service.ready()


def test_an_answer_survives_a_kill_of_the_engine_and_its_receipt_says_so() -> None:
    fields = {"temperature": 0, "max_completion_tokens": 64, "ignore_eos": True}
    with running() as service, Client(service.url, model=STARTER) as client:
        undisturbed = client.chat(STORY, **fields)
        with Client(service.url, model=STARTER) as other, other.stream_events(STORY, **fields) as events:
            answer = Answer()
            killed = False
            for event in events:
                answer.add(event)
                if not killed and len(answer.text) >= 40:  # a quick engine sends many tokens in an event
                    os.kill(service.engine_pid(), signal.SIGKILL)
                    killed = True
        assert answer.text == text_of(undisturbed)
        assert answer.receipt is not None
        assert max(stage["restarts"] or 0 for stage in answer.receipt["stages"]) >= 1


def test_the_engine_does_not_outlive_a_killed_service() -> None:
    with new_home() as home:
        service = DeviceService(home, ["--model", STARTER])
        with service:
            engine = service.engine_pid()
            service.process.kill()
            service.process.wait(60)
            assert gone(engine)


def test_sigterm_lets_a_short_answer_finish() -> None:
    with running(environment={"EDGEWISE_DRAIN_S": "60"}) as service, Client(service.url, model=STARTER) as client:
        answer = Answer()
        with client.stream_events(STORY, temperature=0, max_completion_tokens=48, ignore_eos=True) as events:
            while not answer.text:  # a quick engine sends many tokens in an event; the first is one
                answer.add(next(events))
            service.terminate()
            for event in events:
                answer.add(event)
        assert answer.finish_reason == "length"
        assert service.process.wait(60) == 0


def test_sigterm_cuts_a_long_answer_with_an_error_event() -> None:
    with running(environment={"EDGEWISE_DRAIN_S": "1"}) as service, Client(service.url, model=STARTER) as client:
        with client.stream_events(STORY, temperature=0, max_completion_tokens=6000, ignore_eos=True) as events:
            for _ in range(5):
                next(events)
            service.terminate()
            with pytest.raises(StreamError, match="shutting_down"):
                list(events)
        assert service.process.wait(60) == 0


def test_a_draining_service_refuses_new_work_and_is_not_ready() -> None:
    with running(environment={"EDGEWISE_DRAIN_S": "6"}) as service, Client(service.url, model=STARTER) as client:
        with (
            client.stream_events(STORY, temperature=0, max_completion_tokens=6000, ignore_eos=True) as events,
            Client(service.url, model=STARTER) as other,
        ):
            next(events)
            other.get("/healthz")  # its connection stays open
            service.terminate()
            while other.http.get("/readyz").status_code != 503:
                time.sleep(0.05)
            refused = other.http.post("/v1/chat/completions", json=other.body("Hello"))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            with pytest.raises(StreamError):
                list(events)
        assert service.process.wait(60) == 0


def test_an_open_event_feed_does_not_delay_the_end() -> None:
    with running() as service, httpx.Client(base_url=service.url, timeout=30, trust_env=False) as http:
        headers = {"accept": "text/event-stream"}
        with http.stream("GET", "/edgewise/v1/events", headers=headers) as feed:
            lines = feed.iter_lines()
            next(lines)
            service.terminate()
            assert service.process.wait(60) == 0
            list(lines)


def test_a_missing_model_is_said_at_once(tmp_path: Path) -> None:
    service = DeviceService(tmp_path, ["--model", "no-such-model"])
    with pytest.raises(ServiceError, match="no-such-model"), service:
        pass


def test_a_taken_port_is_said_at_once() -> None:
    with running() as service, new_home() as home:
        second = subprocess.run(
            edgewise_command("serve", "--model", STARTER, "--port", str(service.port)),
            env=edgewise_environment(home),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode != 0
        assert str(service.port) in second.stderr
        assert "Traceback" not in second.stderr
        assert service.ready()


def test_free_port_is_free() -> None:
    with httpx.Client(trust_env=False) as http, pytest.raises(httpx.ConnectError):
        http.get(f"http://127.0.0.1:{free_port()}/")
