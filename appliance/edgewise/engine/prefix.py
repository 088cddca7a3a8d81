"""Names for the contents of KV pages: a hash chain over the tokens that led to them.

Two pages hold the same keys and values exactly when every token from the start of the sequence to the end of the page is the
same, so a page is named by the hash of (name of the page before, its own tokens). The chain starts from the tenant's salt:
tenants never share pages, and nobody can probe what another has asked (the cache-timing side channel of shared prefixes).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

PageHash = bytes


def chain_start(salt: str) -> PageHash:
    """The parent of a sequence's first page. Distinct salts give chains that never meet."""
    return hashlib.sha256(b"edgewise-prefix-1\0" + salt.encode()).digest()


def page_hash(parent: PageHash, tokens: Sequence[int]) -> PageHash:
    """Name of a full page that follows the page named `parent`."""
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


def extend_chain(
    chain: list[PageHash], start: PageHash, tokens: Sequence[int], page_tokens: int, computed: int
) -> None:
    """Append to `chain` the names of all full pages among the first `computed` tokens that it does not name yet."""
    while (len(chain) + 1) * page_tokens <= computed:
        first = len(chain) * page_tokens
        parent = chain[-1] if chain else start
        chain.append(page_hash(parent, tokens[first : first + page_tokens]))
