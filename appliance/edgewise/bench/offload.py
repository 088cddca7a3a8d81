"""What it takes to have an answer or a picture made here, on the cloud, or wherever the device chooses, over several links.

Everything is asked of the device, one request after the other, as any client would. Local is the policy `prefer-local`, cloud
`prefer-cloud`, and hybrid `balanced`: the device chooses the place of each request by what it has measured. Times are those of
the client, bytes those of the receipts, and where the link is our own also what crossed it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

from edgewise.bench.link import Link, LinkShape
from edgewise.bench.probe import measure_words
from edgewise.bench.report import spread
from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import Lengths, WordCost, Work, drawn_work, make_text
from edgewise.core.errors import EngineUnavailable, NotFound

Mode = Literal["local", "cloud", "hybrid"]
Kind = Literal["text", "picture"]

POLICIES: Final[Mapping[Mode, str]] = {"local": "prefer-local", "cloud": "prefer-cloud", "hybrid": "balanced"}
_POLICY_HEADER: Final = "X-Edgewise-Policy"
_LINK_S: Final = 30.0
_WARM_TEXTS: Final = 3
_WARM_WORDS: Final = 8


@dataclass(frozen=True, slots=True)
class Net:
    """A kind of link; without a shape it is whatever lies between the device and its cloud."""

    name: str
    shape: LinkShape | None = None


NETS: Final = (
    Net("10 Mbit/s, 60 ms", LinkShape(bits_per_s=10e6, rtt_s=0.060)),
    Net("100 Mbit/s, 10 ms", LinkShape(bits_per_s=100e6, rtt_s=0.010)),
    Net("1 Gbit/s, 1 ms", LinkShape(bits_per_s=1e9, rtt_s=0.001)),
)
AS_IT_IS: Final = (Net("as it is"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlan:
    """What to ask.

    Attributes:
        model: Language model that device and cloud have.
        picture_model: Likewise; "" draws nothing.
        answers, pictures: Counted requests of each cell of the table.
    """

    model: str
    picture_model: str = ""
    answers: int = 5
    pictures: int = 3
    prompt_tokens: int = 128
    answer_tokens: int = 48
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A line of the table. What is made here does not depend on the link, so it is measured once."""

    kind: Kind
    mode: Mode
    net: Net | None


def cells(nets: Sequence[Net], kinds: Sequence[Kind]) -> Iterator[Cell]:
    """In the order in which they are measured."""
    for kind in kinds:
        yield Cell(kind, "local", None)
    for net in nets:
        for kind in kinds:
            yield Cell(kind, "cloud", net)
            yield Cell(kind, "hybrid", net)


@dataclass(slots=True)
class _Measured:
    """The requests of a cell."""

    samples: list[Sample] = field(default_factory=list)
    crossed: tuple[int, int] | None = None

    def row(self, cell: Cell) -> dict[str, Any]:
        """JSON-able; seconds and bytes of one request."""
        good = [one for one in self.samples if one.error is None]
        costs = [(one.receipt or {}).get("costs") or {} for one in good]
        firsts = [one.first_s for one in good if one.first_s is not None]
        count = max(1, len(self.samples))
        return {
            "work": cell.kind,
            "link": None if cell.net is None else cell.net.name,
            "mode": cell.mode,
            "good": len(good),
            "errors": dict(Counter(one.error for one in self.samples if one.error is not None)),
            "made": dict(Counter(_place(one) for one in good)),
            "first_s": spread(firsts) if cell.kind == "text" else None,
            "total_s": spread([one.total_s for one in good]),
            "up_bytes": spread([float(cost.get("up_bytes", 0)) for cost in costs]),
            "down_bytes": spread([float(cost.get("down_bytes", 0)) for cost in costs]),
            "crossed_up_bytes": None if self.crossed is None else self.crossed[0] // count,
            "crossed_down_bytes": None if self.crossed is None else self.crossed[1] // count,
        }


def _stage(sample: Sample) -> Mapping[str, Any]:
    """Of the receipt; empty where there is none."""
    stages: Sequence[Mapping[str, Any]] = (sample.receipt or {}).get("stages") or ()
    return stages[0] if stages else {}


def _place(sample: Sample) -> str:
    return str(_stage(sample).get("where", "unknown"))


class OffloadBench:
    """One run.

    Args:
        plan: What to ask.
        url: Of the device, without a path.
        link: Between it and its cloud, if it is ours to shape.
        nets: The shapes that it takes, one after the other.
        key: API key of the device.
        notify: Told what is measured next, with the number of requests that have ended and that there are in all.
    """

    def __init__(
        self,
        plan: OffloadPlan,
        url: str,
        link: Link | None = None,
        *,
        nets: Sequence[Net] = NETS,
        key: str | None = None,
        notify: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
    ) -> None:
        self._plan = plan
        self._url = url.rstrip("/").removesuffix("/v1")
        self._link = link
        self._key = key
        self._notify = notify
        self._nets = AS_IT_IS if link is None else nets
        self._clients: dict[Mode, httpx.AsyncClient] = {}
        self._works: Iterator[Work] = iter(())
        self._rng = random.Random(~plan.seed)  # noqa: S311 - made-up prompts, others than those that count
        self._ended = 0
        self._total = 0
        self.rows: list[dict[str, Any]] = []
        """Of the cells that are done, also after an interruption."""

    async def run(self) -> None:
        """Measure every cell.

        Raises:
            EngineUnavailable, NotFound: The device cannot be asked, has no such model, or finds no cloud.
        """
        async with AsyncExitStack() as stack:
            for mode, policy in POLICIES.items():
                self._clients[mode] = await stack.enter_async_context(self._client(policy))
            kinds = await self._kinds()
            table = list(cells(self._nets, kinds))
            self._total = sum(self._count(cell.kind) for cell in table)
            cost = await measure_words(self._clients["local"], self._target, self._plan.seed) or WordCost()
            prompt, answer = self._plan.prompt_tokens, self._plan.answer_tokens
            self._works = drawn_work(Lengths(prompt, prompt), Lengths(answer, answer), cost, self._plan.seed)
            await self._find_cloud()
            net: Net | None = None
            for kind in kinds:
                await self._warm(kind, "local")
            for cell in table:
                if cell.net is not None and cell.net is not net:
                    net = cell.net
                    await self._change(net, kinds)
                self.rows.append((await self._measure(cell)).row(cell))

    # --- one cell ----------------------------------------------------------------------------------------------------

    async def _measure(self, cell: Cell) -> _Measured:
        measured, before = _Measured(), self._crossed()
        for _ in range(self._count(cell.kind)):
            where = "" if cell.net is None else f", {cell.net.name}"
            self._notify(f"{cell.kind}, {cell.mode}{where}", self._ended, self._total)
            measured.samples.append(await self._one(cell.kind, cell.mode))
            self._ended += 1
        after = self._crossed()
        if before is not None and after is not None:
            measured.crossed = (after[0] - before[0], after[1] - before[1])
        self._notify("", self._ended, self._total)
        return measured

    def _crossed(self) -> tuple[int, int] | None:
        return None if self._link is None else (self._link.carried("up"), self._link.carried("down"))

    def _count(self, kind: Kind) -> int:
        return self._plan.answers if kind == "text" else self._plan.pictures

    async def _one(self, kind: Kind, mode: Mode, work: Work | None = None) -> Sample:
        sample = Sample(scheduled=time.perf_counter())
        if kind == "text":
            await ask(self._clients[mode], self._target, work or next(self._works), sample)
        else:
            await self._draw(self._clients[mode], sample)
        return sample

    async def _draw(self, client: httpx.AsyncClient, sample: Sample) -> None:
        text = next(self._works).prompt
        body = {"model": self._plan.picture_model, "prompt": str(text)[:200], "response_format": "b64_json"}
        try:
            answer = await client.post(f"{self._url}/v1/images/generations", json=body)
            if answer.status_code == 200:
                sample.receipt = answer.json().get("edgewise")
            else:
                sample.error = str(answer.status_code)
        except httpx.HTTPError as error:
            sample.error = type(error).__name__
        sample.ended = time.perf_counter()

    # --- before it ---------------------------------------------------------------------------------------------------

    @property
    def _target(self) -> Target:
        return Target(base_url=f"{self._url}/v1", model=self._plan.model, fields={"temperature": 0, "ignore_eos": True})

    def _client(self, policy: str) -> httpx.AsyncClient:
        headers = {_POLICY_HEADER: policy} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        return httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(10.0, read=300.0), trust_env=False)

    async def _kinds(self) -> tuple[Kind, ...]:
        """What can be asked of this device."""
        try:
            answer = (await self._clients["local"].get(f"{self._url}/v1/models")).raise_for_status()
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"The device at {self._url} cannot be asked: {str(error).rstrip('.')}.") from error
        cards = answer.json()["data"]
        names = {name for card in cards for name in (card["id"], *card.get("edgewise", {}).get("aliases", ()))}
        for name in (self._plan.model, self._plan.picture_model):
            if name and name not in names:
                raise NotFound(
                    f"The device at {self._url} has no model {name!r}. `edgewise models list` shows what is installed."
                )
        return ("text", "picture") if self._plan.picture_model and self._plan.pictures else ("text",)

    async def _find_cloud(self) -> None:
        """Return once the device hands work to its cloud."""
        limit = time.monotonic() + _LINK_S
        while True:
            sample = await self._one("text", "cloud", Work(prompt=make_text(_WARM_WORDS, self._rng), answer_tokens=1))
            if sample.error is not None:
                raise EngineUnavailable(
                    f"The device fails on the first request ({sample.error}): nothing was measured."
                )
            if _place(sample) == "cloud":
                return
            if time.monotonic() > limit:
                raise EngineUnavailable(
                    f"The device hands nothing to a cloud: {_stage(sample).get('why')} `edgewise doctor` tells more."
                )

    async def _change(self, net: Net, kinds: Sequence[Kind]) -> None:
        """To another kind of link, and let the device learn of it."""
        if self._link is not None and net.shape is not None:
            self._link.reshape(net.shape)
        for kind in kinds:
            await self._warm(kind, "cloud")

    async def _warm(self, kind: Kind, mode: Mode) -> None:
        for _ in range(_WARM_TEXTS if kind == "text" else 1):
            await self._one(kind, mode)
