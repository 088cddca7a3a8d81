"""The taking side: before a long prompt is computed, a peer may give its KV pages.

What a request goes through, `PeerPages.before_submit`:
  1. its label must let its input leave the device, and its tenant have a key there;
  2. the peer says how many of the prompt's pages it has (by name: a salted hash chain, no text crosses);
  3. pages come in order, in pieces, into the engine's quarantine, as long as the link is measured above the break-even, and for
     as long at most as computing them would take; what has come by then is used;
  4. the engine proves them: an ordinary request computes the last page again over the others, and the bits are compared
     (`engine.handover`). Only then do they get the names under which the request finds them.
Where the link is too slow for exact pages, and the device allows it, they come rounded to 4 bits (`engine.tiers.int4`), if that
is worth it and the model's gate has passed it. Such pages have a chain of names of their own (`rounded_salt`): they are never
mixed with exact ones, nor given on, and the request is submitted under that chain.

Whatever is in doubt is forgotten, and the prompt is computed as if nobody had been asked. No request fails by it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from edgewise.core.errors import BadMessage, EdgewiseError, EngineFault, LinkLost, NotAuthenticated
from edgewise.core.log import get_logger
from edgewise.engine.api import EngineInfo, TokenStream
from edgewise.engine.client import EngineClient
from edgewise.engine.handover import NOT_COMPARED, ORDER_BYTES, pages_of_order
from edgewise.engine.messages import PageForm
from edgewise.engine.prefix import PageHash, chain_start, extend_chain
from edgewise.engine.request import GenerateRequest, RequestStats, SamplingParams, TokenChunk
from edgewise.serving.peers.peer import Peer
from edgewise.serving.peers.rates import LEAST_TOKENS, Average, break_even
from edgewise.serving.peers.shown import ShownPages
from edgewise.wire.pages import MAX_NAMES

FIRST_BYTES = 256 << 10
"""Of the first piece from a peer whose link is not known: enough to measure it by."""
_LEAST_LOOKUP_S, _LOOKUP_S = 0.1, 1.0
_HURRY = 4  # times what computing takes must be left to a request that waits for a peer
_PROOF_S = 5.0  # beside what computing all would take

log = get_logger(__name__)

Tell = Callable[[str, str], None]
"""Told what came of it, a stable word, and for operators a sentence that may be empty."""


def rounded_salt(salt: str) -> str:
    """Where the chain of a tenant's rounded pages begins: no exact page has a name of it."""
    return f"int4:{salt}"


def bytes_of(info: EngineInfo, form: PageForm) -> int:
    """Of a page on the way."""
    return info.kv_int4_page_bytes if form == "int4" else info.kv_page_bytes


@dataclass(frozen=True, slots=True)
class _Taken:
    """Tokens that the request is spared, the bytes of their pages on the way and their form, and why it is not spared what could
    be expected; an empty sentence if it is."""

    tokens: int
    doubt: str = ""
    nbytes: int = 0
    form: PageForm | None = None


@dataclass(slots=True)
class _Errand:
    """One request's pages and the peer that has them. `names`: how the peer calls them; `lasting`: how the engine will;
    `hidden`: in the quarantine, whose salt is `salt`. `held`: how many the engine has itself, under `lasting`.
    `tokens_per_s`: the pace of computing. `rounded` is the same with rounded pages, if they may come."""

    engine: EngineClient
    info: EngineInfo
    request: GenerateRequest
    peer: Peer
    names: list[PageHash]
    lasting: list[PageHash]
    hidden: list[PageHash]
    salt: str
    held: int
    tokens_per_s: float
    form: PageForm
    rounded: _Errand | None = None

    @property
    def page_bytes(self) -> int:
        """On the way."""
        return bytes_of(self.info, self.form)

    @property
    def compute_s(self) -> float:
        return self.spared(len(self.names)) / self.tokens_per_s

    def spared(self, pages: int) -> int:
        return max(0, pages - self.held) * self.info.page_tokens

    def whole(self, pages: int) -> int:
        """So many of them, at most `pages`, that no medium of the prompt is cut: their proof is a prompt of its own."""
        size = self.info.page_tokens
        for medium in self.request.media:
            if medium.start < pages * size < medium.end:
                return medium.start // size
        return pages

    def worth(self, bits_per_s: float | None, done: int) -> bool:
        """Whether what is left comes faster over the link than it is computed; an unknown link is worth a try."""
        spared = self.spared(len(self.names)) - self.spared(done)
        if bits_per_s is None or spared == 0:
            return bits_per_s is None
        per_token = (len(self.names) - done) * self.page_bytes / spared
        return bits_per_s > break_even(per_token, self.tokens_per_s)


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request whose pages are wanted, at most `most` of them. `pace`: of computing, tokens a second. `chains`, `held`: how the
    engine calls them, and how many it has itself, for each form in which they may come, the best first."""

    engine: EngineClient
    info: EngineInfo
    request: GenerateRequest
    pace: float
    most: int
    chains: Mapping[PageForm, list[PageHash]]
    held: Mapping[PageForm, int]

    def break_even(self, form: PageForm) -> float:
        return break_even(bytes_of(self.info, form) / self.info.page_tokens, self.pace)

    def errand(self, peer: Peer, names: list[PageHash], form: PageForm, rounded: _Errand | None) -> _Errand:
        salt = f"quarantine:{secrets.token_hex(16)}"
        lasting = self.chains[form][: len(names)]
        hidden = _chain_of(self.request, salt, self.info)[: len(names)]
        return _Errand(
            *(self.engine, self.info, self.request, peer, names, lasting, hidden, salt),
            held=self.held[form],
            tokens_per_s=self.pace,
            form=form,
            rounded=rounded,
        )


class PeerPages:
    """
    Args:
        peers: Who is asked, in this order.
        shown: What this device gives away; told of every prompt that may be.
        min_tokens: Tokens that a hand-over must spare.
        tell: See `Tell`.
        may_round: Whether pages of the model with this digest may come rounded; asked in a thread.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        shown: ShownPages,
        *,
        min_tokens: int,
        tell: Tell,
        may_round: Callable[[str], bool] = lambda _: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._shown = shown
        self._min_tokens = min_tokens
        self._tell = tell
        self._may_round = may_round
        self._now = now
        self._paces: dict[str, Average] = {}
        self._busy: set[str] = set()
        self._clearing: set[asyncio.Task[None]] = set()

    async def before_submit(
        self, engine: EngineClient, request: GenerateRequest
    ) -> tuple[GenerateRequest, Callable[[TokenStream], TokenStream]]:
        """See `engine.pool.pool.BeforeSubmit`."""
        info = engine.info
        if info is None:
            return request, _same
        taken = None
        if request.shared:
            chain = _chain_of(request, request.salt, info)
            self._shown.add(info.digest, request.salt, chain)
            if self._may_ask(info, request, chain):
                self._busy.add(info.digest)
                try:
                    taken = await self._take(engine, info, request, chain)
                except EdgewiseError as error:
                    # Of our own engine, which will tell the request itself if it cannot work.
                    log.warning("kv_handover_failed", request_id=request.id, reason=error.message)
                finally:
                    self._busy.discard(info.digest)
        pace = self._paces.setdefault(info.digest, Average())
        if taken is not None and taken.form == "int4":
            request = replace(request, salt=rounded_salt(request.salt))
        return request, partial(_Watched, taken=taken, pace=pace)

    async def close(self) -> None:
        await asyncio.gather(*self._clearing, return_exceptions=True)
        for peer in self._peers:
            await peer.close()

    # --- whether ----------------------------------------------------------------------------------------------------------

    def _may_ask(self, info: EngineInfo, request: GenerateRequest, chain: Sequence[PageHash]) -> bool:
        """One hand-over of a model at a time; the others compute. Bits can be compared only where they do not depend on what
        else is in a step."""
        return (
            any(peer.usable(request.salt) for peer in self._peers)
            and info.batch_invariant
            and info.digest not in self._busy
            and self._pace(info.digest) is not None
            and len(chain) * info.page_tokens >= self._min_tokens
        )

    def _pace(self, digest: str) -> float | None:
        """Prompt tokens a second, as measured; None before a prompt was computed here."""
        pace = self._paces.get(digest)
        return None if pace is None else pace.value

    async def _take(
        self, engine: EngineClient, info: EngineInfo, request: GenerateRequest, chain: list[PageHash]
    ) -> _Taken | None:
        held = (await engine.pages("held", chain)).count
        may_round = info.kv_int4_page_bytes > 0 and await asyncio.to_thread(self._may_round, info.digest)
        chains: dict[PageForm, list[PageHash]] = {"exact": chain}
        helds: dict[PageForm, int] = {"exact": held}
        if may_round:
            chains["int4"] = _chain_of(request, rounded_salt(request.salt), info)
            helds["int4"] = (await engine.pages("held", chains["int4"])).count
            if (helds["int4"] - held) * info.page_tokens >= self._min_tokens:
                return _Taken(0, form="int4")
        if (len(chain) - held) * info.page_tokens < self._min_tokens:
            return None
        room = (await engine.stats()).host_limit_bytes // info.kv_page_bytes
        pace = self._pace(info.digest)
        assert pace is not None
        compute_s = (len(chain) - held) * info.page_tokens / pace
        hurried = request.deadline_s is not None and request.deadline_s < _HURRY * compute_s
        if hurried or room * info.page_tokens < self._min_tokens:
            return None
        most = min(len(chain), room, MAX_NAMES)
        for peer in self._peers:
            if peer.usable(request.salt):
                errand = await self._ask(peer, _Wish(engine, info, request, pace, most, chains, helds))
                if errand is not None:
                    return await self._carry_out(errand)
        return None

    async def _ask(self, peer: Peer, wish: _Wish) -> _Errand | None:
        """What the peer has of the prompt, if it is enough, in the first form for which its link is not known to be too slow."""
        info, request, known = wish.info, wish.request, peer.link.bits_per_s
        fast = [form for form in wish.held if known is None or known > wish.break_even(form)]
        if not fast:
            self._tell("slow", "")
            return None
        limit = min(
            _LOOKUP_S, max(_LEAST_LOOKUP_S, (wish.most - wish.held["exact"]) * info.page_tokens / wish.pace / 4)
        )
        try:
            start = await peer.start(request.salt, info.digest, limit)
            names = _chain(request, start, info.page_tokens)[: wish.most]
            offer = await peer.offer(request.salt, info.digest, info.kv_fingerprint, names, limit)
        except NotAuthenticated as error:
            self._tell("unreachable", "")
            log.warning("kv_peer_refuses_key", peer=peer.url, reason=error.message)
            peer.refuse(request.salt)
            return None
        except (LinkLost, BadMessage) as error:
            self._tell("unreachable", "")
            log.info("kv_peer_not_asked", peer=peer.url, reason=error.message)
            peer.rest()
            return None
        if not offer.same:
            self._tell("different", "")
            return None
        errand = None
        for form in [form for form in fast if form in offer.forms][::-1]:
            errand = wish.errand(peer, names[: offer.count], form, errand)
        if errand is None:
            self._tell("slow", "")
        return errand if errand is not None and errand.spared(len(errand.names)) >= self._min_tokens else None

    # --- how --------------------------------------------------------------------------------------------------------------

    async def _carry_out(self, errand: _Errand) -> _Taken | None:
        if not errand.worth(errand.peer.link.bits_per_s, 0):
            self._tell("slow", "")
            return None
        until = self._now() + errand.compute_s
        adopted = 0
        try:
            got, doubt = await self._fetch(errand, until)
            if doubt and doubt[0] == "slow" and errand.rounded and errand.rounded.worth(errand.peer.link.bits_per_s, 0):
                self._forget(errand)
                errand = errand.rounded
                got, doubt = await self._fetch(errand, until)
            got = errand.whole(got)
            if errand.spared(got) < self._min_tokens:
                return self._doubt(errand, *(doubt or ("little", "too little of it came")))
            adopted = await self._prove(errand, got)
        finally:
            if adopted <= 0:
                self._forget(errand)
        if adopted == NOT_COMPARED:
            return self._doubt(errand, "little", "there was no room to keep them")
        if adopted == 0:
            errand.peer.rest(distrusted=True)
            return self._doubt(errand, "disagreed", "the last of its pages is not what this device computes")
        if got < len(errand.names):
            self._forget(errand, got)
        self._tell("used", "")
        errand.peer.was_of_use()
        return _Taken(errand.spared(got), nbytes=got * errand.page_bytes, form=errand.form)

    async def _fetch(self, errand: _Errand, until: float) -> tuple[int, tuple[str, str] | None]:
        """Bring pages into the quarantine; how many, and why not all of them, a word and half a sentence."""
        peer, info, form, count = errand.peer, errand.info, errand.form, len(errand.names)
        got, piece = 0, FIRST_BYTES
        while got < count:
            size = min(max(1, piece // info.kv_page_bytes), pages_of_order(info.kv_page_bytes, form))
            names = errand.names[got : got + size]
            try:
                pages = await peer.pages(
                    errand.request.salt,
                    info.digest,
                    info.kv_fingerprint,
                    names,
                    form,
                    errand.page_bytes,
                    until - self._now(),
                )
            except (LinkLost, NotAuthenticated) as error:
                peer.rest()
                log.info("kv_peer_failed", peer=peer.url, reason=error.message)
                return got, ("late", "it did not come in the time that computing takes")
            except BadMessage as error:
                peer.rest(distrusted=True)
                log.warning("kv_peer_refused", peer=peer.url, reason=error.message)
                return 0, ("damaged", "what came was damaged")
            hidden = errand.hidden[got : got + len(pages)]
            kept = (await errand.engine.pages("import", hidden, contents=pages, form=form)).count if pages else 0
            got += kept
            if kept < len(names):
                return got, ("little", "not all of it was there, or there was no room for it")
            if got < count and not errand.worth(peer.link.bits_per_s, got):
                return got, ("slow", "fetching it would have taken longer than computing it")
            piece = ORDER_BYTES // 2
        return got, None

    async def _prove(self, errand: _Errand, got: int) -> int:
        """Have the engine compute the last page over the others, compare, and give them all their names; see its `adopt`."""
        request, length = errand.request, got * errand.info.page_tokens
        proof = GenerateRequest(
            id=f"handover-{secrets.token_hex(8)}",
            prompt=(*request.prompt, *request.output)[:length],
            media=tuple(medium for medium in request.media if medium.end <= length),
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            salt=errand.salt,
            key=request.key,
            priority=request.priority,
            deadline_s=errand.compute_s + _PROOF_S,
        )
        stream = await errand.engine.submit(proof)
        try:
            async for chunk in stream:
                if chunk.finish == "error":  # contents that no model makes give no finite logits
                    return 0 if chunk.error_code == EngineFault.code else NOT_COMPARED
        finally:
            await stream.aclose()
        lasting = errand.lasting[:got]
        return (await errand.engine.pages("adopt", errand.hidden[:got], lasting=lasting, form=errand.form)).count

    def _doubt(self, errand: _Errand, word: str, why: str) -> _Taken:
        log.info("kv_handover_in_vain", request_id=errand.request.id, peer=errand.peer.url, outcome=word)
        text = f"Another appliance has the KV pages of this prompt, but {why}: all was computed here."
        self._tell(word, text if word in ("disagreed", "damaged") else "")
        return _Taken(0, text)

    def _forget(self, errand: _Errand, first: int = 0) -> None:
        """Empty the quarantine, also when the request has been cancelled: by a task that `close` waits for."""

        async def clear() -> None:
            try:
                await errand.engine.pages("forget", errand.hidden[first:])
            except EdgewiseError as error:  # the engine has ended, and its quarantine with it
                log.debug("kv_quarantine_not_cleared", reason=error.message)

        task = asyncio.create_task(clear(), name="kv-quarantine")
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)


class _Watched:
    """A stream that measures the pace of computing, and tells in its statistics what was handed over."""

    def __init__(self, stream: TokenStream, *, taken: _Taken | None, pace: Average) -> None:
        self._stream = stream
        self._taken = taken
        self._pace: Average | None = pace

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        chunk = await self._stream.__anext__()
        stats = chunk.stats
        if stats is None:
            return chunk
        computed = stats.prompt_tokens - stats.cached_tokens
        if self._pace is not None and computed >= LEAST_TOKENS and stats.prefill_s > 0 and stats.restarts == 0:
            self._pace.add(computed / stats.prefill_s)
        self._pace = None  # the last chunk has the same figures
        return chunk if self._taken is None else replace(chunk, stats=_told(stats, self._taken))

    async def aclose(self) -> None:
        await self._stream.aclose()


def _told(stats: RequestStats, taken: _Taken) -> RequestStats:
    handed = min(taken.tokens, stats.cached_tokens)
    warnings = [taken.doubt] if taken.doubt else []
    if taken.form == "int4":
        warnings.append(
            f"{stats.cached_tokens} tokens of the prompt were read from KV pages that another appliance had rounded to 4 bits "
            "for a slow link: exact pages may give another answer. The model's gate passed it; `peers.int4` turns it off."
        )
    return replace(
        stats,
        handed_tokens=handed,
        handed_bytes=taken.nbytes,
        handed_form=taken.form or "",
        restored_tokens=min(stats.cached_tokens, stats.restored_tokens + handed),
        warnings=(*stats.warnings, *warnings),
    )


def _chain(request: GenerateRequest, start: PageHash, page_tokens: int) -> list[PageHash]:
    """Names of the full pages before the last token, which is always computed."""
    names: list[PageHash] = []
    tokens = [*request.prompt, *request.output]
    extend_chain(names, start, tokens, page_tokens, len(tokens) - 1, request.media)
    return names


def _chain_of(request: GenerateRequest, salt: str, info: EngineInfo) -> list[PageHash]:
    return _chain(request, chain_start(salt), info.page_tokens)


def _same(stream: TokenStream) -> TokenStream:
    return stream
