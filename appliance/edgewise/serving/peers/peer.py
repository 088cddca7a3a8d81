"""One other appliance, as the taking side knows it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from edgewise.api.context import ANONYMOUS_SALT
from edgewise.core.addresses import is_loopback
from edgewise.core.errors import ConfigError, LinkLost, NotAuthenticated
from edgewise.core.patience import within
from edgewise.serving.peers.rates import LinkRate
from edgewise.wire.bounded import PLAIN, read_bounded
from edgewise.wire.codec import decode, encode_cbor
from edgewise.wire.http import CBOR
from edgewise.wire.pages import LOOKUP, PAGES, Form, PageOffer, PageQuery, fingerprint, unpack_pages

ANSWER_BYTES = 8 << 20  # pages of one order and their table, with room for one page above the bound
_FIRST_REST_S, _LONGEST_REST_S = 60.0, 600.0
_OFFER_BYTES = 4096


class Peer:
    """Asks one appliance.

    Args:
        url: Its base address, a private one.
        keys: The keys with which it knows our tenants, by our salt.
        ca_file: PEM file of the authority that signed its certificate; None trusts those of the system.
        now: Monotonic seconds.

    Attributes:
        link: How fast pages came from it.
    """

    def __init__(self, url: str, keys: Mapping[str, str], *, ca_file: Path | None, now: Callable[[], float]) -> None:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"`peers.ca_file`: {ca_file} cannot be used ({error}).", param="peers.ca_file") from error
        self.url = url.rstrip("/")
        self.link = LinkRate(now)
        self._keys = keys
        self._now = now
        self._resting_until = 0.0
        self._rest_s = _FIRST_REST_S
        self._refused: dict[str, float] = {}
        self._on_this_machine = is_loopback(urlsplit(url).hostname or "")
        self._starts: dict[str, bytes] = {}
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=PLAIN,
            verify=tls,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(30.0),
        )

    def __repr__(self) -> str:
        return f"Peer({self.url}, {self.link.bits_per_s} bit/s)"

    def usable(self, salt: str) -> bool:
        """Whether it knows this tenant; not for a while after it failed, gave something wrong or refused the tenant's key."""
        known = salt in self._keys or (salt == ANONYMOUS_SALT and self._on_this_machine)
        return known and self._now() >= max(self._resting_until, self._refused.get(salt, 0.0))

    def refuse(self, salt: str) -> None:
        """It does not take this tenant's key: the others go on."""
        self._refused[salt] = self._now() + _LONGEST_REST_S

    def rest(self, *, distrusted: bool = False) -> None:
        """Leave it alone: longer each time until it has been of use, longest at once where it gave something wrong."""
        self._resting_until = self._now() + (_LONGEST_REST_S if distrusted else self._rest_s)
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)

    def was_of_use(self) -> None:
        self._rest_s = _FIRST_REST_S

    async def start(self, salt: str, digest: str, seconds: float) -> bytes:
        """Where the chain of names of our tenant begins there. Raises `LinkLost`, `NotAuthenticated`."""
        if salt not in self._starts:
            offer = await self._lookup(salt, PageQuery(digest=digest), seconds)
            self._starts[salt] = offer.start
        return self._starts[salt]

    async def offer(self, salt: str, digest: str, pages: str, names: list[bytes], seconds: float) -> PageOffer:
        """What it has of `names`. Raises `LinkLost`, `NotAuthenticated`."""
        query = PageQuery(digest=digest, fingerprint=fingerprint(pages, self._starts[salt]), names=b"".join(names))
        return await self._lookup(salt, query, seconds)

    async def pages(
        self, salt: str, digest: str, pages: str, names: list[bytes], form: Form, page_bytes: int, seconds: float
    ) -> list[bytes]:
        """Contents of the first of `names`, `page_bytes` each in this form.

        Raises:
            LinkLost, NotAuthenticated: None came, or not in time.
            BadMessage: What came is not what was asked for.
        """
        start = fingerprint(pages, self._starts[salt])
        query = PageQuery(digest=digest, fingerprint=start, names=b"".join(names), form=form)
        began = self._now()
        body = await self._ask(PAGES, salt, query, ANSWER_BYTES + page_bytes, seconds)
        contents = unpack_pages(body, names, page_bytes)
        self.link.add(len(body), self._now() - began)
        return contents

    async def close(self) -> None:
        await self._client.aclose()

    async def _lookup(self, salt: str, query: PageQuery, seconds: float) -> PageOffer:
        try:
            return PageOffer.model_validate(decode(await self._ask(LOOKUP, salt, query, _OFFER_BYTES, seconds)))
        except ValidationError as error:
            raise LinkLost(f"{self.url} answers a lookup with something else.") from error

    async def _ask(self, path: str, salt: str, query: PageQuery, most: int, seconds: float) -> bytes:
        late = LinkLost(f"{self.url} did not answer in time.")
        if seconds <= 0:
            raise late
        return await within(self._exchange(path, salt, query, most), seconds, lambda: late)

    async def _exchange(self, path: str, salt: str, query: PageQuery, most: int) -> bytes:
        headers = {"content-type": CBOR}
        if salt in self._keys:
            headers["authorization"] = f"Bearer {self._keys[salt]}"
        try:
            content = encode_cbor(query.model_dump())
            async with self._client.stream("POST", path, content=content, headers=headers) as answer:
                if answer.status_code in (401, 403):
                    raise NotAuthenticated(f"{self.url} answers {answer.status_code} to the key of `peers.keys`.")
                if answer.status_code != 200:
                    raise LinkLost(f"{self.url} answers {answer.status_code}.")
                return await read_bounded(answer, most)
        except httpx.HTTPError as error:
            raise LinkLost(f"{self.url} cannot be asked: {error or type(error).__name__}.") from error
