"""The API tests of openai-python, from its source distribution, for the resources that are served here."""

from __future__ import annotations

from tests.foreign.pytest_suite import PytestSuite
from tests.foreign.suite import Explained, Report, served
from tests.foreign.tools import python_environment, source_distribution

VERSION = "3.57.0"
SHA256 = "5a0a89d6a542efc85e2a8cec701ca9265b795d578c777828e10fafdf80e333b6"
REQUIREMENTS = (
    "aiohttp==3.14.4",
    "pytest==9.1.0",
    "pytest-asyncio==1.4.0",
    "pytest-timeout==2.4.0",
    "inline-snapshot==0.28.0",
    "rich",
    "time-machine",
    "dirty-equals",
    "nest-asyncio",
)
RESOURCES = ("chat/test_completions.py", "test_completions.py", "test_models.py", "test_responses.py")
EXPLAINED = (
    Explained(
        match=r"chat.*all_params.*400 - 'max_tokens' is 0: it must be at least 1",
        why="`max_tokens` and `max_completion_tokens` of 0, both at once, ask for no answer: 400 by name",
    ),
    Explained(
        match=r"all_params.*400 - 'logit_bias' has the key 'foo'",
        why="`logit_bias` with the key `foo`: keys are token ids, 400 by name",
    ),
    Explained(
        match=r"chat.*test_(method|raw_response|streaming_response)_(retrieve|update|delete)\b.*404 - There is no route",
        why="Chat completions are never stored on the device, so none can be fetched, changed or deleted: 404",
    ),
    Explained(
        match=r"chat.*test_(method|raw_response|streaming_response)_list.*405",
        why="Chat completions are never stored on the device, so there is no list of them: 405",
    ),
    Explained(
        match=r"test_models.*_delete.*405",
        why="A model is removed by who runs the device (`edgewise models rm`), not over the API: 405",
    ),
    Explained(
        match=r"test_responses.*_create_overload_[12].*400 - The field 'model' is required",
        why="`responses.create()` without model and input (OpenAI takes both from a stored prompt template): 400 by name",
    ),
    Explained(
        match=r"test_responses.*_create_with_all_params.*400 - 'background' is not supported",
        why="Background mode: an answer is made while its caller waits, `/v1/batches` does work for later: 400 by name",
    ),
    Explained(
        match=r"test_responses.*_(retrieve|delete|cancel).*404 - There is no response 'resp_677efb",
        why="The suite asks for an invented response; a stored one is fetched and deleted in our own tests: 404",
    ),
    Explained(
        match=r"test_responses.*_retrieve.*_overload_2.*400 - 'stream' is not supported",
        why="Streaming a response that is complete already: 400 by name",
    ),
    Explained(
        match=r"test_responses.*_compact.*(404|405)",
        why="`/v1/responses/compact` is not served: a conversation is cut by who holds it",
    ),
)


def run(*, brief: bool = False) -> Report:
    """Run them, those of the asynchronous client too unless `brief`; raises `NotAvailable` without a network."""
    suite = PytestSuite(
        name="openai-python, API tests",
        version=VERSION,
        python=python_environment("openai-tests", [f"openai=={VERSION}", *REQUIREMENTS]),
        folder=source_distribution("openai", VERSION, SHA256),
        files=[f"tests/api_resources/{name}" for name in RESOURCES],
        prefix="tests.api_resources.",
        explained=EXPLAINED,
        options=(
            *("-o", "addopts=", "-o", "filterwarnings=", "-o", "xfail_strict=false"),
            *(("-k", "not Async") if brief else ()),
        ),
    )
    with served(EDGEWISE_ENGINE__MAX_CONTEXT="320") as relay:
        return suite.run(relay, {"TEST_API_BASE_URL": f"{relay.url}/v1", "PYTHONPATH": ""})
