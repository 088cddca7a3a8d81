"""`https:` sources against a real server on loopback that behaves well, badly, and maliciously."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import DigestMismatch, ModelNotFound, SourceUnavailable
from edgewise.models.catalog import CatalogEntry
from edgewise.models.progress import Progress
from edgewise.models.sources.https import MAX_ATTEMPTS, HttpsSource
from edgewise.models.store import Store
from edgewise.security.fetch import UrlRefused
from tests.fakes.model_server import Page

EntryFor = Callable[..., CatalogEntry]


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def source(server: Any, pauses: list[float]) -> HttpsSource:
    return HttpsSource(url=server.url("/m.gguf"), allow_http=True, allow_private=True, timeout_s=5, sleep=pauses.append)


@pytest.fixture
def page(server: Any, payload: bytes) -> Any:
    server.pages["/m.gguf"] = Page(body=payload)
    return server.pages["/m.gguf"]


def installed_bytes(store: Store, name: str = "made-up") -> bytes:
    (path,) = store.resolve(name).paths.values()
    return path.read_bytes()


def test_a_file_arrives_and_progress_ends_at_its_size(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    seen: list[Progress] = []
    manifest = store.pull(entry_for(payload, source), seen.append)
    assert installed_bytes(store) == payload
    assert manifest.source == source.url
    assert seen[-1] == Progress("download", "made-up.gguf", len(payload), len(payload))
    assert [report.done for report in seen] == sorted(report.done for report in seen)


def test_a_second_pull_asks_nobody(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    first = store.pull(entry_for(payload, source))
    server.requests.clear()
    assert store.pull(entry_for(payload, source)) == first
    assert server.requests == []


@pytest.mark.parametrize("seed", range(5))
def test_cut_connections_are_resumed_where_they_broke(
    seed: int, store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    rng = random.Random(seed)
    page.cuts = [rng.randrange(0, 80_000) for _ in range(4)]
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload
    assert server.sent == len(payload), "every byte crossed the wire once"
    ranged = [headers for _, headers in server.requests if "Range" in headers]
    assert ranged
    assert all(headers["If-Range"] == '"v1"' for headers in ranged)


def test_a_server_without_ranges_is_read_from_the_start(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.ranges, page.cuts = False, [100_000, 200_000]
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload


def test_no_etag_resumes_and_lets_the_digest_decide(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    page.etag, page.cuts = None, [100_000]
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload
    assert "If-Range" not in server.requests[1][1]
    assert server.sent == len(payload)


@pytest.mark.parametrize("honest", [True, False], ids=["answers 200", "sends the range all the same"])
def test_a_file_replaced_in_mid_download_begins_anew(
    honest: bool, store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.body, page.cuts = b"old!" * (len(payload) // 4), [100_000]
    page.etag, page.ignore_if_range = '"old"', not honest

    def replace(report: Progress) -> None:
        page.body, page.etag = payload, '"new"'

    store.pull(entry_for(payload, source), replace)
    assert installed_bytes(store) == payload


def test_a_file_replaced_without_any_sign_begins_anew(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.body, page.cuts, page.etag = b"old!" * (len(payload) // 4), [100_000], None

    def replace(report: Progress) -> None:
        page.body = payload

    store.pull(entry_for(payload, source), replace)
    assert installed_bytes(store) == payload


def test_a_pull_that_failed_is_continued_by_the_next(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    page.cuts = [200_000] + [0] * MAX_ATTEMPTS
    with pytest.raises(SourceUnavailable, match="pull again to resume"):
        store.pull(entry_for(payload, source))
    assert store.leftovers() >= 200_000
    with pytest.raises(ModelNotFound):
        store.resolve("made-up")
    page.cuts.clear()
    server.sent = 0
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload
    assert server.sent == len(payload) - 200_000
    assert store.leftovers() == 0


def test_a_damaged_beginning_is_noticed_and_fetched_again(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    entry = entry_for(payload, source)
    partial = store.root / "partial" / entry.files[0].file.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(150_000))  # what a power cut may leave: the length, without the bytes
    store.pull(entry)
    assert installed_bytes(store) == payload


def test_a_beginning_longer_than_the_file_is_not_used(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    entry = entry_for(payload, source)
    partial = store.root / "partial" / entry.files[0].file.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(payload + b"more")
    store.pull(entry)
    assert installed_bytes(store) == payload


@pytest.mark.parametrize(
    ("body_change", "length"),
    [(b"x", None), (b"", 299_999), (b"", 10**15), (None, None)],
    ids=["longer", "states less", "states more", "shorter"],
)
def test_a_wrong_length_is_refused_before_the_body(
    body_change: bytes | None,
    length: int | None,
    store: Store,
    source: HttpsSource,
    page: Any,
    payload: bytes,
    entry_for: EntryFor,
    pauses: list[float],
) -> None:
    page.body = payload[:-1] if body_change is None else payload + body_change
    page.length = length
    with pytest.raises(SourceUnavailable, match="it is another file"):
        store.pull(entry_for(payload, source))
    assert pauses == []
    assert store.manifests() == []


def test_a_body_without_length_is_stopped_at_the_stated_size(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.body, page.chunked = payload + b"x" * 1_000_000, True
    with pytest.raises(DigestMismatch, match="longer than the 300000 bytes"):
        store.pull(entry_for(payload, source))
    assert store.leftovers() == 0


def test_a_body_without_length_arrives(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.chunked, page.cuts = True, [50_000]
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload


def test_other_bytes_of_the_right_length_are_refused(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, tree: Callable[[Path], object]
) -> None:
    page.body = payload[:-1] + b"?"
    with pytest.raises(DigestMismatch, match="not the expected file"):
        store.pull(entry_for(payload, source))
    assert store.manifests() == []
    assert tree(store.root) == {}


def test_a_part_from_the_wrong_offset_is_not_appended(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    page.cuts, page.wrong_start = [100_000], 5

    def mend(seconds: float) -> None:
        if len(server.requests) == 2:
            page.wrong_start = 0

    store.pull(entry_for(payload, HttpsSource(url=source.url, allow_http=True, allow_private=True, sleep=mend)))
    assert installed_bytes(store) == payload


def test_passing_faults_are_tried_again_with_growing_pauses(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, pauses: list[float]
) -> None:
    page.statuses = [503, 502, 429, 500]
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload
    assert len(pauses) == 4
    assert all(0.25 * 2**i <= pause <= 0.5 * 2**i for i, pause in enumerate(pauses))


def test_the_server_may_ask_for_a_longer_pause(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, pauses: list[float]
) -> None:
    page.statuses, page.extra = [503, 503], {"Retry-After": "7"}
    store.pull(entry_for(payload, source))
    assert pauses == [7, 7]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_final_answer_is_not_tried_again(
    status: int, store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor, pauses: list[float]
) -> None:
    page.statuses = [status]
    with pytest.raises(SourceUnavailable, match=f"answers {status}"):
        store.pull(entry_for(payload, source))
    assert pauses == []


def test_an_encoded_body_is_refused(
    store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.extra = {"Content-Encoding": "gzip"}
    with pytest.raises(SourceUnavailable, match="gzip"):
        store.pull(entry_for(payload, source))


def test_a_dead_port_is_said_after_all_attempts(
    store: Store, payload: bytes, entry_for: EntryFor, pauses: list[float]
) -> None:
    dead = HttpsSource(url="http://127.0.0.1:1/m", allow_http=True, allow_private=True, sleep=pauses.append)
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        store.pull(entry_for(payload, dead))
    assert len(pauses) == MAX_ATTEMPTS - 1


def test_the_second_source_continues_what_the_first_began(
    store: Store,
    source: HttpsSource,
    page: Any,
    payload: bytes,
    entry_for: EntryFor,
    server: Any,
) -> None:
    server.pages["/mirror"] = Page(body=payload, etag='"mirror"')
    page.cuts = [120_000] + [0] * MAX_ATTEMPTS
    mirror = HttpsSource(url=server.url("/mirror"), allow_http=True, allow_private=True)
    store.pull(entry_for(payload, source, mirror))
    assert installed_bytes(store) == payload
    assert server.sent == len(payload)


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest", "http://10.0.0.1/x", "http://[::1]/x", "http://127.0.0.2/x"]
)
def test_a_redirect_into_a_private_network_is_refused(
    target: str, store: Store, source: HttpsSource, page: Any, payload: bytes, entry_for: EntryFor
) -> None:
    page.location = target
    with pytest.raises(UrlRefused, match="not a public address"):
        store.pull(entry_for(payload, source))
    assert store.manifests() == []


def test_a_redirect_on_the_allowed_host_is_followed(
    store: Store,
    source: HttpsSource,
    page: Any,
    payload: bytes,
    entry_for: EntryFor,
    server: Any,
) -> None:
    server.pages["/moved"] = Page(body=payload, cuts=[1000])
    page.location = "/moved"
    store.pull(entry_for(payload, source))
    assert installed_bytes(store) == payload


@pytest.mark.parametrize(
    "options",
    [{"allow_http": True}, {"allow_private": True}],
    ids=["loopback was not allowed", "http was not allowed"],
)
def test_nothing_is_opened_without_leave(
    options: dict[str, Any], store: Store, page: Any, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    with pytest.raises(UrlRefused):
        store.pull(entry_for(payload, HttpsSource(url=server.url("/m.gguf"), **options)))
    assert server.requests == []
