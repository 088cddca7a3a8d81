"""`edgewise ps`, `load` and `stop` against a service that answers what the real one would."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgewise.cli.ps import until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def model(name: str, **fields: Any) -> dict[str, Any]:
    idle = {"name": name, "digest": "sha256:00", "state": "loaded", "pinned": False, "memory_bytes": 100 << 20}
    return {
        **idle,
        "needs_bytes": 90 << 20,
        "waiting": 0,
        "active": 0,
        "expires_s": 42.0,
        "pid": 7,
        **fields,
    }


REPORT = {
    "budget_bytes": 400 << 20,
    "granted_bytes": 200 << 20,
    "loads": 2,
    "evictions": 0,
    "models": [
        model("home", pinned=True, expires_s=None),
        model("guest"),
        model("cold", state="unloaded", memory_bytes=0, expires_s=None, pid=None),
    ],
}


@dataclass
class Service:
    url: str = ""
    status: int = 200
    answer: Any = field(default_factory=lambda: REPORT)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def service() -> Iterator[Service]:
    script = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply()

        def do_POST(self) -> None:
            self.reply()

        def reply(self) -> None:
            script.asked.append(f"{self.command} {self.path}")
            body = json.dumps(script.answer).encode()
            self.send_response(script.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield script
        server.shutdown()
        thread.join()


def test_the_table_says_what_is_loaded_and_until_when(run: Run, service: Service) -> None:
    done = run("ps", EDGEWISE_URL=service.url)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:3] == ["MODEL", "STATE", "MEMORY"]
    assert lines[1] == ["home", "loaded", "100.0", "MiB", "0", "0", "pinned", "7"]
    assert lines[2] == ["guest", "loaded", "100.0", "MiB", "0", "0", "42", "s", "7"]
    assert lines[3] == ["cold", "unloaded", "0", "0"]
    assert "200.0 MiB of the budget of 400.0 MiB" in done.stderr
    assert service.asked == ["GET /edgewise/v1/models"]


def test_json_is_the_services_own_answer(run: Run, service: Service) -> None:
    done = run("ps", "--json", EDGEWISE_URL=service.url)
    assert json.loads(done.stdout) == REPORT


def test_a_model_is_loaded_and_stopped_by_name(run: Run, service: Service) -> None:
    loaded = run("load", "guest", EDGEWISE_URL=service.url)
    assert (loaded.returncode, loaded.stderr) == (0, "guest: loaded, 0 requests\n")
    stopped = run("stop", "guest", "--json", EDGEWISE_URL=service.url)
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, REPORT)
    assert service.asked == ["POST /edgewise/v1/models/guest/load", "POST /edgewise/v1/models/guest/unload"]


def test_a_refusal_is_one_line_and_an_exit_code(run: Run, service: Service) -> None:
    service.status, service.answer = 404, {"error": {"message": "The model 'x' does not exist here."}}
    done = run("stop", "x", EDGEWISE_URL=service.url)
    assert done.returncode == 5
    assert done.stderr.splitlines() == ["edgewise: The model 'x' does not exist here."]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"active": 1}, "in use"),
        ({"waiting": 1}, "in use"),
        ({"expires_s": None}, "for ever"),
        ({"expires_s": 300.0}, "5 min"),
        ({"state": "loading"}, ""),
        ({"pinned": True}, "pinned"),
    ],
)
def test_until(fields: dict[str, Any], words: str) -> None:
    assert until(model("any", **fields)) == words
