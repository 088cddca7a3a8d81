"""Answers decoded by the device itself: steps are queued before the tokens of the last one are read.

A `Loop` keeps the rows of a batch on the device and draws their tokens there (`models.decoder.cuda.loop`). While the same
sequences go on decoding, `engine.engine` launches the next step first and reads tokens afterwards, so the device never waits
for the host. A token that turns out to have ended its answer was followed by one more step of that row: what that drew is
dropped, and what it wrote lies in a page of the sequence that nobody has been told of.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from edgewise.engine.constraint import Constraints
from edgewise.engine.drawing import draw, goes_on
from edgewise.engine.runner import Network, Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.kernels.paging import KVLayer
from edgewise.kernels.sample import Draw
from edgewise.models.decoder.rows import DecodeRow
from edgewise.models.multimodal.protocol import StepMedia


class Landing(Protocol):
    """A step that has been launched."""

    def tokens(self) -> list[int]:
        """One for each row, -1 where the model produced no finite logits; waits for the step."""

    @property
    def logits(self) -> torch.Tensor:
        """[rows, vocab] float32, until the next step is launched."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that the device has begun and whose tokens have not been read; its work is committed. `began`: engine clock in
    seconds, when the device was free for it."""

    work: Seq[Work]
    landing: Landing
    began: float


class Loop(Protocol):
    """What decodes on a device; see `models.decoder.cuda.loop.DecodeLoop`."""

    @property
    def max_rows(self) -> int: ...

    def launch(self, rows: Seq[DecodeRow]) -> Landing: ...

    def follow(self, pages: Seq[Seq[int]]) -> Landing: ...

    def draw(self, logits: torch.Tensor, rows: Seq[DecodeRow]) -> list[int]: ...


@runtime_checkable
class Looping(Protocol):
    """A network whose device can decode by itself."""

    def loop(self, kv: Seq[KVLayer], *, max_rows: int, max_pages: int) -> Loop: ...


class AheadRunner(Runner):
    """A runner over a `Loop`: tokens of prompts are computed by the network's forward pass, those of answers by the loop.

    Which way a token takes is decided by its place in the sequence alone, also where an answer is computed again. The two ways
    round differently, so an answer's pages are nobody else's (`Residency`, `answers_apart`).
    """

    def __init__(
        self,
        network: Network,
        kv: Seq[KVLayer],
        device: torch.device,
        loop: Loop,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(network, kv, device, constraints)
        self._loop = loop

    @torch.inference_mode()
    def run(self, work: Seq[Work], media: StepMedia | None = None) -> list[list[Draw]]:
        """See `Runner.run`."""
        if media is not None or self.observer is not None:
            raise ValueError("a network with a loop takes no media, and nobody hears what it thinks")
        prompts, answers = zip(*(_divided(item) for item in work), strict=True)
        drawn = dict(self._prompts([item for item in prompts if item is not None]))
        drawn |= dict(self._answers([item for item in answers if item is not None]))
        return [drawn.get(item.sequence.id, []) for item in work]

    def queues(self, work: Seq[Work]) -> bool:
        """Whether a step can be launched and followed by another before its tokens are known: every row decodes one token, and
        the device can draw the next."""
        return 0 < len(work) <= self._loop.max_rows and all(
            item.sample
            and item.count == 1
            and item.start >= len(item.sequence.request.prompt)
            and _plain(item.sequence, item.start)
            for item in work
        )

    def launch(self, work: Seq[Work]) -> Landing:
        """Begin a step of decodes that `queues` allows."""
        return self._loop.launch([_row(item, item.start) for item in work])

    def follow(self, work: Seq[Work]) -> Landing:
        """Begin the step after the last one that was begun: the same sequences in the same order, a token further."""
        return self._loop.follow([item.sequence.pages for item in work])

    def _prompts(self, work: Seq[Work]) -> list[tuple[str, list[Draw]]]:
        if not work:
            return []
        hidden = self._forward(work, None)
        ends, sampled = [], []
        end = 0
        for item in work:
            end += item.count
            if item.sample:
                ends.append(end - 1)
                sampled.append(item)
        if not sampled:
            return []
        logits = self._network.logits(hidden[torch.tensor(ends, device=self._device)])
        tokens = self._loop.draw(logits, [_row(item, item.start + item.count - 1) for item in sampled])
        return [
            (item.sequence.id, self._drawn(item, [token], [row]))
            for item, token, row in zip(sampled, tokens, logits, strict=True)
        ]

    def _answers(self, work: Seq[Work]) -> list[tuple[str, list[Draw]]]:
        """Tokens of one sequence, guesses among them, are rows of one step as far as there is room, else of steps in order."""
        rows = [(item, place) for item in work for place in range(item.count)]
        tokens: dict[tuple[str, int], int] = {}
        logits: dict[tuple[str, int], torch.Tensor] = {}
        for first in range(0, len(rows), self._loop.max_rows):
            group = rows[first : first + self._loop.max_rows]
            landing = self._loop.launch([_row(item, item.start + place) for item, place in group])
            if any(item.sample for item, _ in group):
                drawn = landing.tokens()
                kept = landing.logits.clone() if first + len(group) < len(rows) else landing.logits
                for row, (item, place) in enumerate(group):
                    tokens[item.sequence.id, place] = drawn[row]
                    logits[item.sequence.id, place] = kept[row]
        found: list[tuple[str, list[Draw]]] = []
        for item in work:
            if item.sample:
                places = [(item.sequence.id, place) for place in range(item.count - 1 - len(item.proposed), item.count)]
                own = [tokens[place] for place in places]
                found.append((item.sequence.id, self._drawn(item, own, [logits[place] for place in places])))
        return found

    def _drawn(self, item: Work, tokens: Seq[int], logits: Seq[torch.Tensor]) -> list[Draw]:
        """Draws of an item (`engine.drawing.draw`), of each of whose last rows the device's token and logits [vocab] are given:
        in each place the device's if it draws as is asked for there, as it would without guesses, else the host's."""
        first = item.start + item.count - len(tokens)
        # Always the first ones: all that depends on the place is whether the answer may end there yet.
        hosts = sum(not _plain(item.sequence, first + place) for place in range(len(tokens)))
        drawn: list[Draw] = []
        if hosts:
            held = replace(item, proposed=item.proposed[: hosts - 1])
            drawn = draw(torch.stack(list(logits[:hosts])), [held], [self._mask(item.sequence)], self._mask)[0]
        while len(drawn) < len(tokens) and (not drawn or goes_on(item, drawn)):
            token = tokens[len(drawn)]
            drawn.append(Draw(token, broken=token < 0))
        return drawn


def _divided(item: Work) -> tuple[Work | None, Work | None]:
    """The parts of an item that lie in the prompt and in the answer. Guesses behind the last token of a prompt are let go."""
    border = len(item.sequence.request.prompt)
    if item.start < border and item.proposed:
        item = replace(item, count=item.count - len(item.proposed), proposed=())
    end = item.start + item.count
    if end <= border:
        return item, None
    if item.start >= border:
        return None, item
    return replace(item, count=border - item.start, sample=False), replace(item, start=border, count=end - border)


def _plain(sequence: Sequence, position: int) -> bool:
    """Whether the device draws the token behind `position` as it is asked for. It knows temperature and min_p."""
    sampling = sequence.request.sampling
    filtered = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1.0)
    penalized = sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty
    banned = sampling.stop_token_ids and _place(sequence, position) < sampling.min_tokens
    asked = sampling.logit_bias or sampling.top_logprobs is not None or sequence.request.constraint is not None
    return not (filtered or penalized or banned or asked)


def _place(sequence: Sequence, position: int) -> int:
    """Where in the answer the token behind `position` stands."""
    return position + 1 - len(sequence.request.prompt)


def _row(item: Work, position: int) -> DecodeRow:
    sequence, sampling = item.sequence, item.sequence.request.sampling
    return DecodeRow(
        token=item.tokens[position - item.start],
        position=position,
        pages=sequence.pages,
        temperature=sampling.temperature,
        min_p=sampling.min_p,
        seed=sampling.seed,
        place=_place(sequence, position),
    )
