"""llama.cpp's own server tests, from the source distribution of llama-cpp-python, those that ask the OpenAI and Anthropic routes.

Their server process is replaced by ours (`llamacpp_conftest`); the relay adds what llama.cpp does not need: the prefix /v1 and
a model's name. Tests of llama.cpp's own routes (/completion, /props, /slots, /infill, /tokenize, ...) and of starting it are not
run: they describe another program.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.foreign.pytest_suite import PytestSuite
from tests.foreign.suite import Explained, Report, served
from tests.foreign.tools import cache, python_environment, source_distribution

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
REQUIREMENTS = (
    "pytest==9.1.0",
    "pytest-timeout==2.4.0",
    "numpy",
    "openai==3.57.0",
    "requests",
    "wget",
    "prometheus-client",
    "filelock",
    "aiohttp",
)
FILES = ("test_chat_completion.py", "test_compat_anthropic.py", "test_compat_oai_responses.py", "test_ignore_eos.py")
EXPLAINED = (
    Explained(
        match=r"startswith",
        why="`system_fingerprint` begins with `b` and llama.cpp's build number there; with us it tells model and numeric class",
    ),
    Explained(
        match=r"(cached_tokens|token_count|logit_bias|apply_chat_template|thinking_history_in_template).*"
        r"(assert \d+ == 77|404)",
        why="The case counts tokens of its own model, or asks a route of llama.cpp's alone (/tokenize, /apply-template)",
    ),
    Explained(
        match=r"(stream|logprobs_stream).*assert '' is None",
        why='The first event of a stream has `content: ""`, as OpenAI\'s has; llama.cpp sends null',
    ),
    Explained(
        match=r"__verbose|verbose_debug|timings_per_token|return_progress|multiple_choices|test_completion_with_grammar"
        r"|test_completion_with_json_schema|continue_final_message",
        why="Fields of llama.cpp's own (`id_slot`, `grammar` in GBNF, `json_schema`, `timings_per_token`, `return_progress`, "
        "`continue_final_message`, `__verbose`): 400 by name, or not part of the answer",
    ),
    Explained(
        match=r"test_completion_with_response_format.*400 == 200",
        why="`json_object` with a `schema`, and a `json_schema` without its `name`: not in OpenAI's document, 400 by name",
    ),
    Explained(
        match=r"test_invalid_chat_completion_req\[messages7\].*200",
        why="Two answers of the assistant in a row: llama.cpp refuses them, OpenAI and we take them",
    ),
    Explained(
        match=r"test_logprobs: .*\\\\x",
        why="A token that is no whole character: its text is escaped in `logprobs`, its bytes are beside it, as OpenAI does",
    ),
    Explained(
        match=r"exceed_context_size_error",
        why="A prompt over the context has OpenAI's error type and code (`context_length_exceeded`), not llama.cpp's",
    ),
    Explained(
        match=r"(with_image|vision_format_accepted).*400 == 500",
        why="A picture for a model that takes none is the caller's mistake (400), not a fault of the server (500)",
    ),
    Explained(
        match=r"match_regex|Expected \(",
        why="The case expects a text of its own model; a random one answers here",
    ),
    Explained(
        match=r"huggingface\.co",
        why="The case downloads a picture from a site that was not reachable here",
    ),
    Explained(
        match=r"test_anthropic_empty_messages.*400 == 200",
        why="No messages at all: 400, as Anthropic answers; llama.cpp invents a text",
    ),
    Explained(
        match=r"test_anthropic_thinking",
        why="Thinking blocks of the Messages API are not made and not shown to the model; `thinking` is refused by name",
    ),
)


def run() -> Report:
    """Run them; raises `NotAvailable` without a network."""
    source = source_distribution("llama_cpp_python", VERSION, SHA256) / "vendor" / "llama.cpp" / "tools" / "server"
    suite = PytestSuite(
        name="llama.cpp, server tests",
        version=f"llama-cpp-python {VERSION}",
        python=python_environment("llamacpp-tests", REQUIREMENTS),
        folder=_work_folder(source / "tests"),
        files=[f"unit/{name}" for name in FILES],
        prefix="unit.",
        explained=EXPLAINED,
    )
    with served(add_v1=True, add_model=True) as relay:
        address = relay.url.removeprefix("http://")
        return suite.run(relay, {"EDGEWISE_TEST_RELAY": address, "PYTHONPATH": str(suite.folder)})


def _work_folder(tests: Path) -> Path:
    """Their tests beside our conftest, in a folder of its own: the source stays as it was shipped."""
    work = cache() / "llamacpp-work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(tests, work)
    shutil.copyfile(Path(__file__).with_name("llamacpp_conftest.py"), work / "conftest.py")
    return work
