"""Which tokens of a sequence are on the device, and how the others get there: shared, loaded from a tier, moved back, or empty.

All or nothing: a sequence gets pages for every token it has before it runs, or none (reserve before admit).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from edgewise.engine.pages import MOVED, PagePool, Parked
from edgewise.engine.prefix import PageHash, extend_chain
from edgewise.engine.sequence import Sequence
from edgewise.engine.tiering import NoTiers, PageTiers


class Residency:
    """Pages of sequences.

    Args:
        pages: The pool.
        page_tokens: Tokens per page.
        tiers: Where pages may be that the device has no more; the same that `pages` has.
        answers_apart: Tokens of answers are computed in another way than those of prompts, and their keys and values have other
            bits: only pages of a prompt are shared, and only prompts share them.
    """

    def __init__(
        self, pages: PagePool, *, page_tokens: int, tiers: PageTiers | None = None, answers_apart: bool = False
    ) -> None:
        self.pages = pages
        self._page_tokens = page_tokens
        self._answers_apart = answers_apart
        self._tiers: PageTiers = tiers or NoTiers()

    # --- coming ----------------------------------------------------------------------------------------------------------

    def place(self, sequence: Sequence, *, spare: int) -> bool:
        """Pages for all tokens of a waiting sequence, if `spare` pages stay available beside them; sets `computed`."""
        if sequence.blocked_at == self.pages.returned:
            return False
        placed = self._begin(sequence, spare) if sequence.parked is None else self._resume(sequence, spare)
        sequence.blocked_at = None if placed else self.pages.returned
        return placed

    def grow(self, sequence: Sequence, ahead: int = 0) -> bool:
        """Pages for the next token of a running sequence and `ahead` more, if it needs any; False if there are none."""
        missing = self.missing(sequence, ahead)
        if missing == 0:
            return True
        pages = self.pages.allocate(missing)
        if pages is None:
            return False
        sequence.pages += pages
        return True

    def missing(self, sequence: Sequence, ahead: int = 0) -> int:
        """Pages that `grow` would take."""
        return max(0, self._pages_for(len(sequence.tokens) + ahead) - len(sequence.pages))

    def trim(self, sequence: Sequence) -> None:
        """Give back the pages of a running sequence that hold none of its tokens."""
        held = self._pages_for(len(sequence.tokens))
        if held < len(sequence.pages):
            self.pages.release(sequence.pages[held:])
            del sequence.pages[held:]

    def settle(self, sequence: Sequence, computed: int) -> None:
        """Record that the first `computed` tokens are in the cache, and name the pages that are full and may be shared."""
        sequence.computed = computed
        shared = self._shared(sequence, computed)
        full = shared // self._page_tokens
        if full <= sequence.named or not self.pages.keeps:
            return
        self._name(sequence, shared)
        for index in range(sequence.named, full):
            self.pages.name(sequence.pages[index], sequence.names[index])
        sequence.named = full

    def prefix(self, sequence: Sequence) -> list[PageHash]:
        """Names of the full pages that may be known already. The last token is always computed: its hidden state gives the
        first logits."""
        if not self.pages.keeps:
            return []
        before = self._shared(sequence, len(sequence.tokens) - 1)
        self._name(sequence, before)
        return sequence.names[: before // self._page_tokens]

    # --- going -----------------------------------------------------------------------------------------------------------

    def suspend(self, sequence: Sequence, recompute_s: float | None) -> None:
        """Take a running sequence's pages: parked if they are worth it beside `recompute_s` seconds, else forgotten."""
        held = self._pages_for(sequence.computed)
        if self.pages.spill.reserve(held, recompute_s):
            self.pages.release(sequence.pages[held:])
            sequence.parked = self.pages.park(sequence.pages[:held])
        else:
            self.pages.release(sequence.pages)
            sequence.computed = 0
        sequence.pages = []
        sequence.named = 0

    def release(self, sequence: Sequence) -> None:
        """Free everything that a sequence holds."""
        self.pages.release(sequence.pages)
        sequence.pages = []
        if sequence.parked is not None:
            self.pages.discard(sequence.parked)
            self._forget(sequence, sequence.parked)

    # --- sums ------------------------------------------------------------------------------------------------------------

    def needed(self, sequence: Sequence) -> int:
        """Available pages that placing a waiting sequence would take."""
        total = self._pages_for(len(sequence.tokens))
        if sequence.parked is None:
            return total - self.pages.shared_prefix(self.prefix(sequence))
        return total - sum(1 for page in sequence.parked.pages if page != MOVED and self.pages.users(page))

    def freed_by(self, sequences: Iterable[Sequence]) -> int:
        """Pages that suspending all of `sequences` makes available, at least."""
        return sum(1 for sequence in sequences for page in sequence.pages if self.pages.users(page) == 1)

    def unfilled(self, sequence: Sequence) -> float:
        """Room behind the last token of a running sequence, in pages: less than one; none where its next token needs a page."""
        return max(0.0, len(sequence.pages) - len(sequence.tokens) / self._page_tokens)

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _shared(self, sequence: Sequence, tokens: int) -> int:
        """How many of the first `tokens` of a sequence may have bits that other sequences use."""
        return min(tokens, len(sequence.request.prompt)) if self._answers_apart else tokens

    def _name(self, sequence: Sequence, computed: int) -> None:
        media = sequence.spans.media
        extend_chain(sequence.names, sequence.start, sequence.tokens, self._page_tokens, computed, media)

    def _begin(self, sequence: Sequence, spare: int) -> bool:
        chain = self.prefix(sequence)
        shared = self.pages.acquire_prefix(chain)
        own = self._allocate(self._pages_for(len(sequence.tokens)) - len(shared), spare)
        if own is None:
            self.pages.release(shared)
            return False
        known = len(shared) + self._load(chain[len(shared) :], own)
        sequence.pages = shared + own
        sequence.named = known
        sequence.computed = known * self._page_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, len(sequence.request.prompt))
            sequence.restored_tokens = max(0, sequence.cached_tokens - len(shared) * self._page_tokens)
        return True

    def _load(self, chain: Seq[PageHash], pages: Seq[int]) -> int:
        """Load what lower tiers hold of `chain` into pages just allocated, and name them; returns how many pages that were."""
        count = self._tiers.lookup(chain) if chain else 0
        if count == 0:
            return 0
        good = self._tiers.load(chain[:count], pages[:count])
        for page, name in zip(pages[:good], chain[:good], strict=True):
            self.pages.name(page, name)
        return good

    def _resume(self, sequence: Sequence, spare: int) -> bool:
        parked = sequence.parked
        assert parked is not None
        self.pages.unpark(parked)
        gone = [place for place, page in enumerate(parked.pages) if page == MOVED]
        own = self._allocate(len(gone) + self._pages_for(len(sequence.tokens)) - len(parked.pages), spare)
        if own is None:
            self.pages.repark(parked)
            return False
        if gone:
            self.pages.spill.restore(own[: len(gone)], [parked.contents[place] for place in gone])
        for place, page in zip(gone, own, strict=False):
            parked.pages[place] = page
        sequence.pages = parked.pages + own[len(gone) :]
        self._forget(sequence, parked)
        self.settle(sequence, sequence.computed)
        return True

    def _forget(self, sequence: Sequence, parked: Parked) -> None:
        self.pages.spill.free(len(parked.pages))
        sequence.parked = None

    def _allocate(self, count: int, spare: int) -> list[int] | None:
        return self.pages.allocate(count) if self.pages.available >= count + spare else None

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)
