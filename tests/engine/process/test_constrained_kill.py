"""kill -9 in the middle of an answer that follows a grammar: it goes on with the same tokens, inside the grammar."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace

from edgewise.engine.client import EngineClient
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import load_tokenizer
from edgewise.pipeline.structured.lark import constraint
from edgewise.pipeline.structured.rules import rules_of
from edgewise.pipeline.structured.vocabulary import vocabulary_of
from edgewise.pipeline.task import AnswerFormat
from tests.engine.process.conftest import QUICK
from tests.engine.test_engine import config_of

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 20, "maxLength": 30}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


async def test_the_answer_goes_on_inside_its_grammar(tiny_model: ModelFiles) -> None:
    tokenizer = load_tokenizer(tiny_model)
    client = EngineClient(
        config_of(tiny_model, vocabulary=vocabulary_of(tokenizer)), timings=replace(QUICK, patience_s=60.0)
    )
    await client.start()
    try:
        await client.wait_ready(60.0)
        request = GenerateRequest(
            id="whole",
            prompt=(5, 6, 7),
            sampling=SamplingParams(
                max_tokens=120, temperature=1.0, seed=3, stop_token_ids=tuple(sorted(tokenizer.eos_ids))
            ),
            constraint=constraint(rules_of(AnswerFormat(kind="json_schema", value=SCHEMA))),
        )
        whole, _ = await tokens_of(client, request, kill_at=None)
        assert set(json.loads(tokenizer.decode(whole))) == {"a", "b"}
        cut, killed = await tokens_of(client, replace(request, id="cut"), kill_at=9)
        assert killed
        assert cut == whole
        for _ in range(3000):  # where the whole answer was on its way already, the next life comes after it
            if client.pid not in (None, killed):
                break
            await asyncio.sleep(0.02)
        assert client.pid not in (None, killed)
    finally:
        await client.stop()


async def tokens_of(client: EngineClient, request: GenerateRequest, *, kill_at: int | None) -> tuple[list[int], int]:
    """All tokens of the answer; the engine is killed once `kill_at` have come. Returns its process id, 0 for none."""
    tokens: list[int] = []
    killed = 0
    async for chunk in await client.submit(request):
        tokens += chunk.tokens
        assert chunk.finish in (None, "stop"), chunk.error_message
        if kill_at is not None and not killed and len(tokens) >= kill_at:
            killed = client.pid or 0
            os.kill(killed, signal.SIGKILL)
    return tokens, killed
