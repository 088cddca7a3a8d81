"""Names for the contents of KV pages: a hash chain over the tokens, and the media, that led to them.

Two pages hold the same keys and values exactly when every token from the start of the sequence to the end of the page is the
same, so a page is named by the hash of (name of the page before, its own tokens). Placeholders of media are all alike, so a
page that has some is also named by what they stand for. The chain starts from the tenant's salt: tenants never share pages, and
nobody can probe what another has asked (the cache-timing side channel of shared prefixes).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from edgewise.models.multimodal.media import Media

PageHash = bytes


def chain_start(salt: str, apart: str = "", adapter: str = "") -> PageHash:
    """The parent of a sequence's first page. Distinct salts, values of `apart`, and digests of adapters give chains that never
    meet."""
    own = (f"\0{apart}" if apart else "") + (f"\1{adapter}" if adapter else "")
    return hashlib.sha256(b"edgewise-prefix-1\0" + (salt + own).encode()).digest()


def page_hash(parent: PageHash, tokens: Sequence[int]) -> PageHash:
    """Name of a full page that follows the page named `parent`."""
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


def extend_chain(
    chain: list[PageHash],
    start: PageHash,
    tokens: Sequence[int],
    page_tokens: int,
    computed: int,
    media: Sequence[Media] = (),
) -> None:
    """Append to `chain` the names of all full pages among the first `computed` tokens that it does not name yet.

    Args:
        media: What placeholders among the tokens stand for.
    """
    while (len(chain) + 1) * page_tokens <= computed:
        first = len(chain) * page_tokens
        last = first + page_tokens
        parent = chain[-1] if chain else start
        for one in media:
            if one.start < last and one.end > first:
                parent = _media_hash(parent, one, first)
        chain.append(page_hash(parent, tokens[first:last]))


def _media_hash(parent: PageHash, medium: Media, first: int) -> PageHash:
    """What stands in for `parent` in the name of a page that has placeholders of a medium, and begins at `first`.

    The place is part of it: which of the medium's rows are on the page. So is what decides positions and who sees whom.
    """
    told = (medium.start - first, medium.count, medium.grid, medium.second, medium.whole)
    return hashlib.sha256(b"edgewise-media-1\0" + parent + medium.digest + repr(told).encode()).digest()
