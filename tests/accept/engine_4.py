"""Two parallel tool calls in one streamed answer, through OpenAI's clients for Python and Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
from openai import OpenAI

from tests.accept.line import Line, NotRun, Verdict, main, progress
from tests.e2e.service import STARTER, TOKEN_BY_TOKEN, running

NODE_CLIENT = "openai@7.59.0"
SCRIPT = Path(__file__).with_name("engine_4.mjs")
AT_ONCE = 8
MOST_SEEDS = 200
"""Seeds tried for each answer of two calls: how many calls a small model makes is chance."""

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "Paris", "東京"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["city", "days", "note"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zones": {"type": "array", "items": {"enum": ["UTC", "CET", "JST"]}, "minItems": 1, "maxItems": 3}},
    "required": ["zones"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}


def body(seed: int) -> dict[str, Any]:
    return {
        "model": STARTER,
        "messages": [
            {"role": "user", "content": "What are weather and time in Paris and in Köln? Call both functions."}
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "description": "Tells it.", "parameters": schema, "strict": True},
            }
            for name, schema in SCHEMAS.items()
        ],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "max_completion_tokens": 600,
        "temperature": 1.0,
        "seed": seed,
    }


@contextmanager
def node_client() -> Iterator[Path]:
    """A folder with OpenAI's client for Node and the script beside it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotRun("it needs node and npm")
    with tempfile.TemporaryDirectory(prefix="edgewise-node-") as name:
        folder = Path(name)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", NODE_CLIENT]
        done = subprocess.run(install, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise NotRun(f"npm cannot install {NODE_CLIENT}: {done.stderr.strip()[-200:]}")
        shutil.copy(SCRIPT, folder)
        yield folder


def through_node(folder: Path, url: str, seed: int) -> dict[str, Any]:
    command = ["node", SCRIPT.name, f"{url}/v1", json.dumps(body(seed))]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def through_python(client: OpenAI, seed: int) -> dict[str, Any]:
    pieces: list[dict[str, Any]] = []
    with client.chat.completions.stream(**body(seed)) as stream:
        for event in stream:
            if event.type == "chunk":
                deltas = [choice.delta.tool_calls or () for choice in event.chunk.choices]
                pieces += [piece.model_dump(exclude_unset=True) for delta in deltas for piece in delta]
        done = stream.get_final_completion()
    (choice,) = done.choices
    calls = [call.model_dump(exclude_unset=True) for call in choice.message.tool_calls or ()]
    return {"pieces": pieces, "calls": calls, "finish": choice.finish_reason}


def faults(streams: dict[str, dict[str, Any]], whole: list[dict[str, Any]]) -> list[str]:
    """What is not as it must be."""
    found = [
        f"{name}: finish reason {told['finish']}" for name, told in streams.items() if told["finish"] != "tool_calls"
    ]
    for name, told in streams.items():
        if plain(told["calls"]) != plain(whole):
            found.append(f"{name}: {plain(told['calls'])} is not the whole answer's {plain(whole)}")
        for index, call in enumerate(whole):
            pieces = [piece for piece in told["pieces"] if piece.get("index") == index]
            if [piece["function"].get("name") for piece in pieces if piece["function"].get("name")] != [
                call["function"]["name"]
            ]:
                found.append(f"{name}: call {index} does not have its name exactly once")
            if sum("id" in piece and bool(piece["id"]) for piece in pieces) != 1 or len(pieces) < 3:
                found.append(f"{name}: call {index} came in {len(pieces)} pieces, or with other than one id")
        if {piece.get("index") for piece in told["pieces"]} != set(range(len(whole))):
            found.append(f"{name}: indices {sorted({str(piece.get('index')) for piece in told['pieces']})}")
    if len({call["id"] for call in whole}) != len(whole):
        found.append("two calls have one id")
    for call in whole:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return found


def plain(calls: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def whole_answer(client: OpenAI, seed: int) -> list[dict[str, Any]]:
    """The calls of an answer that is not streamed; none if it did not end by itself."""
    choice = client.chat.completions.create(**body(seed)).choices[0]
    calls = [call.model_dump(exclude_unset=True) for call in choice.message.tool_calls or ()]
    progress(f"seed {seed}: {len(calls)} calls, {choice.finish_reason}")
    return calls if choice.finish_reason == "tool_calls" else []


def answers_of_two(client: OpenAI) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Seeds whose answers have exactly two calls, and those calls; the search asks for several answers at once."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for first in range(0, MOST_SEEDS, AT_ONCE):
            seeds = range(first, first + AT_ONCE)
            for seed, calls in zip(seeds, threads.map(partial(whole_answer, client), seeds), strict=True):
                if len(calls) == 2:
                    yield seed, calls


def measure(count: int) -> Verdict:
    """Looks for `count` answers of exactly two calls among the seeds, and sends each again through both clients."""
    broken: list[dict[str, Any]] = []
    found = 0
    with node_client() as folder, running(environment=TOKEN_BY_TOKEN) as service:
        client = OpenAI(base_url=f"{service.url}/v1", api_key="unused", timeout=600, max_retries=0)
        for seed, whole in islice(answers_of_two(client), count):
            found += 1
            streams = {"python": through_python(client, seed), "node": through_node(folder, service.url, seed)}
            wrong = faults(streams, whole)
            if wrong:
                broken.append({"seed": seed, "faults": wrong})
    figure = f"{found - len(broken)} of {found} answers of two calls arrived intact through both clients"
    return Verdict(figure=figure, passed=found == count and not broken, details={"broken": broken})


LINE = Line(
    number=4,
    title="Two parallel tool calls streamed through openai-python and openai-node arrive intact",
    bar="every one: ids, names, indices and arguments as in the whole answer, arguments valid",
    count=5,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_4")
