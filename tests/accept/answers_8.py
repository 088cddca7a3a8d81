"""From another host (a network namespace), without a key: every route but health is refused; with a key it works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.accept.line import Line, NotRun, Verdict, main
from tests.e2e.client import Client
from tests.e2e.service import STARTER, edgewise, new_home, running

ALLOWED = {"/healthz", "/readyz"}
HERE, THERE = "10.213.71.1", "10.213.71.2"
UNLISTED = (
    ("GET", "/"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/v1/no-such-route"),
    ("OPTIONS", "/v1/models"),
    ("GET", "/v1/models/"),
    ("GET", "//v1/models"),
    ("GET", "/healthz/../v1/models"),
    ("GET", "/%68ealthz/../metrics"),
    ("TRACE", "/v1/models"),
)
ASK = """
import http.client, json, sys
host, port, key, routes = json.loads(sys.stdin.read())
found = []
for method, path in routes:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    headers = {"Authorization": "Bearer " + key} if key else {}
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    if body:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found.append([method, path, answer.status, len(answer.read())])
    connection.close()
print(json.dumps(found))
"""


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, timeout=30)


@contextmanager
def other_host() -> Iterator[str]:
    """A network namespace that reaches this one over a pair of virtual links; yields its name.

    Raises:
        NotRun: No root, or no `ip` command, or the kernel does not allow it.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise NotRun("it needs root and the ip command (package iproute2)")
    name = f"edgewise-{os.getpid()}"
    link = f"ew{os.getpid() % 10**6}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, timeout=30).returncode != 0:
        raise NotRun("this kernel or container does not allow network namespaces")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", f"{link}p", "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", f"{link}p")
        ip("-n", name, "link", "set", f"{link}p", "up")
        yield name
    finally:
        ip("netns", "del", name)  # its end of the link goes with it, and so does ours


def ask_from(namespace: str, port: int, key: str, routes: list[tuple[str, str]]) -> list[tuple[str, str, int, int]]:
    """(method, path, status, length of the body) of each route as asked from the other host."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", ASK]
    done = subprocess.run(
        command, input=json.dumps([HERE, port, key, routes]), check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    return [(method, path, status, length) for method, path, status, length in json.loads(done.stdout)]


def routes_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every (method, path) of an OpenAPI document, parameters filled in, and some that it does not list."""
    listed = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, ways in document["paths"].items()
        for method in ways
    ]
    return [*listed, *UNLISTED]


def measure(count: int) -> Verdict:
    """`count` rounds over all routes, without a key and with a wrong one; then one with the right key."""
    with other_host() as namespace, new_home() as home:
        key = json.loads(edgewise(home, "keys", "new", "acceptance", "--json"))["key"]
        with running(home=home, host=HERE) as service:
            with Client(service.url, key=key, model=STARTER) as client:
                routes = routes_of(client.get("/openapi.json"))
            answers = [
                answer
                for round_ in range(count)
                for wrong in ("", f"sk-wrong-{round_}")
                for answer in ask_from(namespace, service.port, wrong, routes)
            ]
            with_key = ask_from(namespace, service.port, key, [("GET", "/v1/models"), ("GET", "/healthz")])
    open_routes = sorted({f"{m} {p} -> {s}" for m, p, s, _ in answers if p not in ALLOWED and s not in (400, 401, 403)})
    health = [s for m, p, s, _ in answers if m == "GET" and p in ALLOWED]
    works = all(status == 200 for _, _, status, _ in with_key)
    passed = not open_routes and bool(health) and set(health) == {200} and works
    figure = (
        f"{len(routes)} routes, {len(open_routes)} open besides health, with a key {'works' if works else 'REFUSED'}"
    )
    return Verdict(figure=figure, passed=passed, details={"open": open_routes, "routes": routes})


LINE = Line(
    number=8,
    title="From another host (network namespace), without a key or with a wrong one: every route but health is refused",
    bar="0 open besides health; a right key works",
    count=5,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_8")
