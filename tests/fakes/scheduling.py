"""A scheduler over a pretended network and cache, for tests of what is computed when and of who waits."""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from edgewise.core.clock import FakeClock
from edgewise.engine.chunking import MediaKey, MediaPlan, key_of
from edgewise.engine.pacing import Pacer
from edgewise.engine.pages import PagePool
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams
from edgewise.engine.scheduler import Scheduler, StepPlan, Work
from edgewise.engine.sequence import Sequence
from edgewise.engine.spill import SpillSpace
from edgewise.engine.tiering import NoTiers
from edgewise.models.multimodal.media import Media

PAGE = 4


def request(
    name: str,
    prompt: Seq[int],
    max_tokens: int = 4,
    *,
    priority: Priority = Priority.INTERACTIVE,
    deadline_s: float | None = None,
    salt: str = "",
    key: str = "",
    lead_s: float = 0.0,
    media: Seq[Media] = (),
) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
        priority=priority,
        deadline_s=deadline_s,
        salt=salt,
        key=key,
        lead_s=lead_s,
        media=tuple(media),
    )


def picture(start: int, count: int, name: int = 0, *, whole: bool = False) -> Media:
    """A medium whose placeholders stand for rows that are its own."""
    return Media(
        kind="image",
        start=start,
        count=count,
        digest=bytes([name]) * 32,
        content=b"",
        shape=(0,),
        whole=whole,
    )


class FakeRows:
    """Media that are encoded, at most `limit` rows of them, in `parts` parts of `part_s`; the longest unused go first."""

    def __init__(self, limit: int, parts: int = 3, part_s: float = 0.0) -> None:
        self.limit = limit
        self.parts = parts
        self.part_s = part_s
        self.held: dict[MediaKey, int] = {}
        self.unfinished: MediaKey | None = None
        self.done = 0

    def ready(self, key: MediaKey) -> bool:
        return key in self.held

    def fits(self, medium: Media, keep: Collection[MediaKey]) -> bool:
        return sum(self.held.get(key, 0) for key in keep) + medium.count <= self.limit

    def advance(self, plan: MediaPlan) -> float:
        """What `engine.senses` does after a step; a part a step."""
        assert plan.used <= self.held.keys(), "rows are needed that are not there"
        if plan.encode is None:
            return 0.0
        key, medium = plan.encode
        assert not self.ready(key), "it is there already"
        if key != self.unfinished:
            self.unfinished, self.done = key, 0
        self.done += 1
        if self.done < self.parts:
            return self.part_s
        for stays in (plan.used | plan.keep, plan.used):
            for old in [old for old in self.held if old not in stays]:
                if sum(self.held.values()) + medium.count > self.limit:
                    del self.held[old]
        self.held[key] = medium.count
        self.unfinished = None
        assert sum(self.held.values()) <= self.limit
        return self.part_s


class FakeMover:
    """Moves pages of the harness' memory; a page's content crosses as JSON in `page_bytes` bytes."""

    page_bytes = 256

    def __init__(self, memory: dict[int, dict[int, int]]) -> None:
        self.memory = memory

    def export(self, pages: Seq[int]) -> list[memoryview]:
        return [memoryview(json.dumps(self.memory[page]).encode().ljust(self.page_bytes)) for page in pages]

    def restore(self, pages: Seq[int], contents: Seq[memoryview]) -> None:
        for page, content in zip(pages, contents, strict=True):
            self.memory[page] = {int(slot): token for slot, token in json.loads(bytes(content)).items()}


class FakeTiers(NoTiers):
    """Pages by name in a dictionary, as the harness' memory has them; tells what it was asked."""

    def __init__(self, memory: dict[int, dict[int, int]]) -> None:
        self.memory = memory
        self.kept: dict[bytes, dict[int, int]] = {}
        self.asked: list[bytes] = []
        self.settled_names: list[bytes] = []
        self.coming: set[bytes] = set()

    def lookup(self, chain: Seq[bytes]) -> int:  # type: ignore[override]
        return next((i for i, name in enumerate(chain) if name not in self.kept), len(chain))

    def prefetch(self, chain: Seq[bytes]) -> None:  # type: ignore[override]
        self.asked += chain

    def pending(self, chain: Seq[bytes]) -> bool:  # type: ignore[override]
        return bool(self.coming & set(chain))

    def load(self, chain: Seq[bytes], pages: Seq[int]) -> int:  # type: ignore[override]
        for page, name in zip(pages, chain, strict=True):
            self.memory[page] = dict(self.kept[name])
        return len(pages)

    def settled(self, page: int, name: bytes) -> None:  # type: ignore[override]
        self.settled_names.append(name)

    def evicted(self, page: int, name: bytes) -> None:  # type: ignore[override]
        self.kept[name] = dict(self.memory[page])


class FakeGuesses:
    """Guesses as many tokens as it is told, of which so many are right: each call takes the next pair of `script`, round and
    round, and each sequence the one after."""

    resting = False

    def __init__(self, script: Seq[tuple[int, int]]) -> None:
        self.script = list(script)
        self.calls = 0

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        guesses = []
        for sequence, room in zip(sequences, rooms, strict=True):
            count, right = self.script[self.calls % len(self.script)]
            self.calls += 1
            count = max(0, min(count, room, most))
            most -= count
            follow = answer(sequence.tokens, count)
            guesses.append(tuple(token if place < right else -1 - token for place, token in enumerate(follow)))
        return guesses

    def passed(self) -> None:
        self.calls += 1


@dataclass
class Harness:
    """A scheduler and a fake network whose next token is a pure function of the tokens before it."""

    pages: int = 16
    max_running: int = 4
    max_waiting: int = 50
    max_context: int = 1000
    step_tokens: int = 8
    tiered: bool = False
    spill_pages: int = 0
    ageing_s: float = 0.0
    rows_limit: int = 16
    guesses: FakeGuesses | None = None
    max_rows: int = 12
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        # What a cache would hold: page -> its tokens. Proves that a shared or reused page has the right content.
        self.memory: dict[int, dict[int, int]] = {}
        self.tiers = FakeTiers(self.memory)
        tiers = self.tiers if self.tiered else None
        mover = FakeMover(self.memory)
        self.spill = SpillSpace(mover, self.spill_pages * mover.page_bytes, now=self.clock.monotonic)
        self.pool = PagePool(self.pages, tiers=tiers, spill=self.spill)
        self.pacer = Pacer(max_step_tokens=self.step_tokens, grain=2)
        self.rows = FakeRows(self.rows_limit)
        self.scheduler = Scheduler(
            self.pool,
            page_tokens=PAGE,
            max_context=self.max_context,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            pacer=self.pacer,
            now=self.clock.monotonic,
            tiers=tiers,
            ageing_s=self.ageing_s,
            rows=self.rows,
            speculator=self.guesses,
            max_rows=self.max_rows,
        )
        self.done: dict[str, list[int]] = {}

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        encoding_s = self.rows.advance(plan.media)
        assert plan.prefilling <= self.step_tokens
        for work in plan.work:
            self._check_media(work, plan)
            sequence = work.sequence
            assert work.count == len(work.tokens)
            for position, token in zip(range(work.start, work.start + work.count), work.tokens, strict=True):
                page = sequence.pages[position // PAGE]
                assert self.pool.users(page) == 1, "a shared page is written"
                if position % PAGE == 0:
                    self.memory[page] = {}
                self.memory.setdefault(page, {})[position % PAGE] = content(sequence, position, token)
        assert plan.proposed == 0 or plan.decoding + plan.proposed <= self.max_rows
        if plan.work:
            self.pacer.observe(decoding=plan.decoding, load=plan.load, seconds=0.001 + 0.0001 * plan.prefilling)
        self.pacer.encoded(plan.decoding, encoding_s)
        if plan.media.payer is not None:
            self.scheduler.charge_encoder(plan.media.payer, encoding_s)
        for work in plan.work:
            accepted = self._accepted(work)
            self.scheduler.commit(work, accepted)
            self._check_cache(work.sequence, work.start + work.count - len(work.proposed) + len(accepted))
            if work.sample:
                self._draw(work.sequence)
        return plan

    def _accepted(self, work: Work) -> list[int]:
        """The guesses that the network would have drawn."""
        right = answer(work.sequence.tokens, len(work.proposed))
        count = next((i for i, one in enumerate(work.proposed) if one != right[i]), len(right))
        return right[:count]

    def _check_cache(self, sequence: Sequence, upto: int) -> None:
        held = [self.memory[sequence.pages[p // PAGE]][p % PAGE] for p in range(upto)]
        assert held == [content(sequence, position, sequence.tokens[position]) for position in range(upto)]
        assert sequence.computed == upto

    def _check_media(self, work: Work, plan: StepPlan) -> None:
        """Rows are there for every placeholder, and no medium that must be whole is cut."""
        end = work.start + work.count
        for medium in work.sequence.spans.within(work.start, end):
            assert key_of(work.sequence, medium) in plan.media.used
            assert not medium.whole or end >= medium.end, "a medium is cut"

    def _draw(self, sequence: Sequence) -> None:
        sequence.tokens.append(sum(sequence.tokens) * 31 % 101)
        if sequence.generated >= sequence.request.sampling.max_tokens:
            self.done[sequence.id] = sequence.tokens[len(sequence.request.prompt) :]
            self.scheduler.remove(sequence)

    def drain(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.scheduler.running and not self.scheduler.waiting:
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps: {self.scheduler!r}")


def content(sequence: Sequence, position: int, token: int) -> int:
    """What the cache holds of `token`, which stands there: a placeholder is the row of its medium."""
    for medium in sequence.spans.within(position, position + 1):
        return 10_000 + 1000 * medium.digest[0] + position - medium.start
    return token


def answer(prompt: Seq[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(sum(tokens) * 31 % 101)
    return tokens[len(prompt) :]
