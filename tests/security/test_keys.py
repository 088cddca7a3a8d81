from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgewise.core.clock import FakeClock
from edgewise.core.errors import InvalidRequest, NotFound, StorageError
from edgewise.security.keys import SCOPES, KeyRecord, KeyStore

CREATOR = """
import sys
from pathlib import Path
from edgewise.security.keys import KeyStore
store = KeyStore(Path(sys.argv[1]))
for n in range(10_000):
    record, token = store.create(f"{sys.argv[2]}-{n}")
    print(token, flush=True)
    if n % 3 == 0:
        store.revoke(record.id)
        print("revoked", token, flush=True)
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.db", clock=clock) as opened:
        yield opened


def test_a_key_is_shown_once_and_verifies(store: KeyStore, clock: FakeClock) -> None:
    record, token = store.create("shop-floor", ["inference", "metrics"])
    assert re.fullmatch(r"ew_[0-9a-z]{8}_[A-Za-z0-9_-]{43}", token)
    assert record == KeyRecord(
        id=token.split("_")[1],
        name="shop-floor",
        scopes=frozenset({"inference", "metrics"}),
        created_at=clock.time(),
    )
    assert store.verify(token) == record
    assert store.list() == [record]


def test_the_secret_is_nowhere_on_disk(store: KeyStore, tmp_path: Path) -> None:
    _, token = store.create("a")
    store.close()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert token.encode() not in content
    assert token.split("_", 2)[2].encode() not in content  # the secret may hold "_" itself


def test_only_its_owner_can_read_the_file(store: KeyStore, tmp_path: Path) -> None:
    store.create("a")
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "forge",
    [
        lambda token: "",
        lambda token: "ew_",
        lambda token: token + "x",
        lambda token: token[:-1],
        lambda token: token + "\n",
        lambda token: " " + token,
        lambda token: token.upper(),
        lambda token: token[:12] + "A" * 43,
        lambda token: "ew_zzzzzzzz_" + token[12:],
        lambda token: token[:-1] + "é",
        lambda token: token[:3] + "%" * 8 + token[11:],
        lambda token: "x" * 10_000_000,
    ],
)
def test_forged_keys(store: KeyStore, forge: object) -> None:
    _, token = store.create("a")
    assert callable(forge)
    assert store.verify(forge(token)) is None


def test_every_character_counts(store: KeyStore) -> None:
    _, token = store.create("a")
    for position in range(3, len(token)):
        other = "b" if token[position] != "b" else "c"
        assert store.verify(token[:position] + other + token[position + 1 :]) is None


def test_expiry(store: KeyStore, clock: FakeClock) -> None:
    _, short = store.create("short", ttl_s=60)
    record, dated = store.create("dated", expires_at=clock.time() + 120)
    clock.advance(59.9)
    assert store.verify(short)
    clock.advance(0.1)
    assert store.verify(short) is None
    assert store.verify(dated) == record
    clock.advance(60)
    assert store.verify(dated) is None
    assert [key.name for key in store.list()] == ["short", "dated"]


@pytest.mark.parametrize("field", ["id", "name"])
def test_revoke(store: KeyStore, clock: FakeClock, field: str) -> None:
    record, token = store.create("a")
    _, other = store.create("b")
    clock.advance(5)
    assert store.revoke(getattr(record, field)).revoked_at == clock.time()
    assert store.verify(token) is None
    assert store.verify(other)
    with pytest.raises(NotFound, match="edgewise keys list"):
        store.revoke(getattr(record, field))


def test_a_name_is_free_again_after_revocation(store: KeyStore) -> None:
    _, old = store.create("a")
    with pytest.raises(InvalidRequest, match="`a` exists"):
        store.create("a")
    store.revoke("a")
    _, new = store.create("a")
    assert store.verify(new)
    assert store.verify(old) is None


def test_a_revocation_by_another_process_holds_at_once(store: KeyStore, tmp_path: Path) -> None:
    _, token = store.create("a")
    with KeyStore(tmp_path / "keys.db") as other:
        assert other.verify(token)
        other.revoke("a")
    assert store.verify(token) is None


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "../x", "-a", "a\n", "ä", "a\0"])
def test_names_that_are_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="key name"):
        store.create(name)


@pytest.mark.parametrize("scopes", [[], ["root"], ["inference", "x"], ["inference admin"]])
def test_scopes_that_are_refused(store: KeyStore, scopes: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="choose from inference, metrics, admin"):
        store.create("a", scopes)


@pytest.mark.parametrize("expiry", [{"ttl_s": 0}, {"ttl_s": -1}, {"ttl_s": float("nan")}, {"expires_at": 1.0}])
def test_expiries_that_are_refused(store: KeyStore, expiry: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match="future"):
        store.create("a", **expiry)  # type: ignore[arg-type]


def test_two_expiries(store: KeyStore) -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        store.create("a", expires_at=2e10, ttl_s=1)


def test_admin_includes_the_other_scopes(store: KeyStore) -> None:
    admin, _ = store.create("a", ["admin"])
    plain, _ = store.create("b", ["inference"])
    assert all(admin.allows(scope) for scope in SCOPES)
    assert [scope for scope in SCOPES if plain.allows(scope)] == ["inference"]


def test_repr_and_reuse_after_close(store: KeyStore, tmp_path: Path) -> None:
    assert repr(store) == f"KeyStore('{tmp_path}/keys.db', open=False)"
    store.create("a")
    assert repr(store).endswith("open=True)")
    store.close()
    store.close()
    assert len(store.list()) == 1


def test_many_threads(store: KeyStore) -> None:
    tokens: list[str] = []

    def work(worker: int) -> None:
        for n in range(10):
            _, token = store.create(f"{worker}-{n}")
            assert store.verify(token)
            tokens.append(token)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.list()) == len(tokens) == 80


def test_several_processes_create_the_database_together(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from edgewise.security.keys import KeyStore\n"
    code += "with KeyStore(Path(sys.argv[1])) as store: store.create(sys.argv[2])"
    arguments = [[sys.executable, "-c", code, str(tmp_path / "keys.db"), f"p{n}"] for n in range(6)]
    processes = [subprocess.Popen(each) for each in arguments]
    assert [process.wait(60) for process in processes] == [0] * 6
    with KeyStore(tmp_path / "keys.db") as store:
        assert {record.name for record in store.list()} == {f"p{n}" for n in range(6)}


def test_kill_in_mid_write_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    live: set[str] = set()
    revoked: set[str] = set()
    unheard: set[str] = set()  # the last key of a round: its revocation may have happened without the word getting out
    chance = random.Random(0)
    for round_number in range(20):
        command = [sys.executable, "-c", CREATOR, str(path), str(round_number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randrange(1, 30))]
            process.kill()
            lines += [line for line in process.stdout if line.endswith("\n")]
        for line in lines:
            token = line.split()[-1]
            (revoked if line.startswith("revoked") else live).add(token)
        unheard.add(lines[-1].split()[-1])
        with KeyStore(path) as store:
            assert store.check() == "ok"
    with KeyStore(path) as store:
        assert not [token for token in live - revoked - unheard if store.verify(token) is None]
        assert not [token for token in revoked if store.verify(token)]
        ids = {record.id for record in store.list()}
        assert not [token for token in live if token.split("_")[1] not in ids]
    assert len(live) > 20
    assert len(revoked) > 20


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_bytes(b"no database at all" * 100)
    with KeyStore(tmp_path / "keys.db") as store, pytest.raises(StorageError, match="is damaged"):
        store.list()


def test_a_full_disk_is_named_and_reads_go_on(store: KeyStore) -> None:
    _, token = store.create("a")
    assert store._connection is not None
    store._connection.execute("PRAGMA max_page_count = 1")  # SQLite then answers as on a full disk
    full = 0
    for n in range(200):
        try:
            store.create(f"n{n}")
        except StorageError as error:
            full += "the disk is full" in error.message
    assert full > 0
    assert store.verify(token)
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.create("after-space-came-back")


def test_a_database_that_stays_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.security.keys._BUSY_TIMEOUT_S", 0.05)
    with KeyStore(tmp_path / "keys.db") as store:
        _, token = store.create("a")
        blocker = sqlite3.connect(tmp_path / "keys.db")
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked"):
            store.create("b")
        assert store.verify(token)  # readers are not blocked by a writer
        blocker.rollback()
        blocker.close()
        store.create("b")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with KeyStore(tmp_path / "file" / "keys.db") as store, pytest.raises(StorageError, match="in the way"):
        store.list()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_creates_keys_for_the_service_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    with KeyStore(tmp_path / "keys.db") as store:
        store.create("a")
        owners = {(file.stat().st_uid, file.stat().st_gid) for file in tmp_path.iterdir()}
    assert owners == {(12345, 12346)}


@given(st.text(max_size=80))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_no_text_is_a_key(store: KeyStore, text: str) -> None:
    assert store.verify(text) is None


class KeyMachine(RuleBasedStateMachine):
    """Random lives of keys against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.path = Path(os.environ["PYTEST_KEY_MACHINE"]) / f"{random.SystemRandom().random()}.db"
        self.store = KeyStore(self.path, clock=self.clock)
        self.tokens: dict[str, tuple[str, float | None]] = {}
        self.names: set[str] = set()

    @rule(name=st.sampled_from("abc"), ttl=st.none() | st.floats(1, 100))
    def create(self, name: str, ttl: float | None) -> None:
        if name in self.names:
            with pytest.raises(InvalidRequest):
                self.store.create(name, ttl_s=ttl)
            return
        record, token = self.store.create(name, ttl_s=ttl)
        self.tokens[token] = (name, record.expires_at)
        self.names.add(name)

    @rule(name=st.sampled_from("abc"))
    def revoke(self, name: str) -> None:
        if name not in self.names:
            with pytest.raises(NotFound):
                self.store.revoke(name)
            return
        self.store.revoke(name)
        self.names.discard(name)
        self.tokens = {token: entry for token, entry in self.tokens.items() if entry[0] != name}

    @rule(seconds=st.floats(0, 50))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def reopen(self) -> None:
        self.store.close()

    @invariant()
    def verifies_exactly_the_usable_keys(self) -> None:
        for token, (name, expires_at) in self.tokens.items():
            record = self.store.verify(token)
            usable = expires_at is None or self.clock.time() < expires_at
            assert (record is not None and record.name == name) == usable

    def teardown(self) -> None:
        self.store.close()


def test_key_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setenv("PYTEST_KEY_MACHINE", str(tmp_path))
    run_state_machine_as_test(KeyMachine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None))


def test_a_key_has_a_deadline_class(store: KeyStore) -> None:
    record, token = store.create("nightly", priority="background")
    assert record.priority == "background"
    assert store.verify(token) == record
    assert store.create("app")[0].priority == "interactive"
    with pytest.raises(InvalidRequest, match="realtime, interactive, background, bulk"):
        store.create("other", priority="urgent")
    assert len(store.list()) == 2


def test_a_key_may_have_a_privacy_label(store: KeyStore) -> None:
    record, token = store.create("clinic", privacy=" Private")
    assert record.privacy == "private"
    assert store.verify(token) == record
    assert store.create("app")[0].privacy is None
    with pytest.raises(InvalidRequest, match="private, site, any"):
        store.create("other", privacy="secret")
    assert len(store.list()) == 2


def test_keys_of_an_older_version_stay_valid(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    with KeyStore(path) as store:
        _, token = store.create("app")
    database = sqlite3.connect(path)
    database.executescript(
        "DROP INDEX live_devices; ALTER TABLE keys DROP COLUMN device;"
        "ALTER TABLE keys DROP COLUMN priority; ALTER TABLE keys DROP COLUMN privacy; PRAGMA user_version = 1;"
    )
    database.close()
    with KeyStore(path) as store:
        record = store.verify(token)
        assert record is not None
        assert record.priority == "interactive"
        assert record.privacy is None
        assert store.create("next", priority="bulk")[0].priority == "bulk"


def test_a_key_may_be_bound_to_a_device_which_has_one_at_a_time(store: KeyStore) -> None:
    record, token = store.create("line-1", device="dev-1")
    assert record.device == "dev-1"
    assert store.verify(token) == record == store.of_device("dev-1")
    assert store.create("app")[0].device is None
    assert store.of_device("dev-2") is None
    with pytest.raises(InvalidRequest, match="the device `dev-1` has a key already"):
        store.create("other", device="dev-1")
    with pytest.raises(InvalidRequest, match="device name 'a/b'"):
        store.create("other", device="a/b")
    store.revoke("line-1")
    ended = store.of_device("dev-1")
    assert ended is not None
    assert ended.revoked_at is not None
    follower, _ = store.create("line-1", device="dev-1")
    assert store.of_device("dev-1") == follower
