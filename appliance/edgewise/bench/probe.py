"""What must be known of a server before it is loaded: a model's name, and how many tokens it makes of words."""

from __future__ import annotations

import random
import time

import httpx

from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import WordCost, Work, make_text
from edgewise.core.errors import EngineUnavailable, NotFound

_FEW, _MANY = 8, 136


async def first_model(client: httpx.AsyncClient, base_url: str) -> str:
    """The first model that the server lists.

    Raises:
        EngineUnavailable: It cannot be asked.
        NotFound: It lists none.
    """
    url = f"{base_url.rstrip('/')}/models"
    try:
        response = await client.get(url)
        response.raise_for_status()
        models = response.json()["data"]
    except httpx.HTTPStatusError as error:
        raise EngineUnavailable(
            f"{url} answers {error.response.status_code}: check the URL and the API key."
        ) from error
    except httpx.HTTPError as error:
        raise EngineUnavailable(
            f"{url} cannot be reached ({type(error).__name__} {error}): is the server running?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineUnavailable(
            f"{url} does not answer with a list of models: is it an OpenAI-compatible server?"
        ) from error
    if not models:
        raise NotFound(f"{url} lists no model: name one with --model.")
    return str(models[0]["id"])


async def measure_words(client: httpx.AsyncClient, target: Target, seed: int) -> WordCost | None:
    """How many tokens this server's template and tokenizer make of words, from its counts of two short prompts.

    Returns:
        None where it sends no usage, so that prompts can only be made of as many words as tokens are asked for.

    Raises:
        EngineUnavailable: It does not answer.
    """
    rng = random.Random(~seed)  # noqa: S311 - made-up prompts, others than the run's
    few, many = [await _count(client, target, make_text(words, rng)) for words in (_FEW, _MANY)]
    if few is None or many is None or many <= few:
        return None
    per_word = (many - few) / (_MANY - _FEW)
    return WordCost(fixed=few - per_word * _FEW, per_word=per_word)


async def warm_up(client: httpx.AsyncClient, target: Target, works: list[Work]) -> None:
    """Does some work that is not counted; raises EngineUnavailable where it is refused."""
    for work in works:
        await _ask(client, target, work)


async def _count(client: httpx.AsyncClient, target: Target, text: str) -> int | None:
    return (await _ask(client, target, Work(prompt=text, answer_tokens=1))).prompt_tokens


async def _ask(client: httpx.AsyncClient, target: Target, work: Work) -> Sample:
    sample = Sample(scheduled=time.perf_counter())
    await ask(client, target, work, sample)
    if sample.error is not None:
        raise EngineUnavailable(f"{target.url} fails on the first request ({sample.error}): nothing was measured.")
    return sample
