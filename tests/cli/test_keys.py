from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from edgewise.cli.main import main
from edgewise.security.keys import KeyStore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path))
    return tmp_path


def keys(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *args])
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_only_the_key_goes_to_standard_output(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = keys(capsys, "new", "app", "--scope", "inference", "--scope", "metrics", "--expires-in", "90d")
    with KeyStore(home / "keys.db") as store:
        record = store.verify(out.strip())
    assert record is not None
    assert record.scopes == {"inference", "metrics"}
    assert record.expires_at is not None
    assert record.expires_at - record.created_at == 90 * 86400
    assert "cannot be shown again" in err
    assert out.strip() not in err


def test_new_as_json_with_a_date(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    created = json.loads(keys(capsys, "new", "app", "--expires-at", "2099-01-02", "--json")[0])
    assert created["expires_at"] == datetime(2099, 1, 2, tzinfo=timezone.utc).timestamp()
    with KeyStore(home / "keys.db") as store:
        assert store.verify(created["key"])


def test_list_and_revoke(capsys: pytest.CaptureFixture[str]) -> None:
    token = keys(capsys, "new", "app")[0].strip()
    keys(capsys, "new", "other", "--scope", "admin")
    assert "`app`" in keys(capsys, "revoke", "app")[1]
    out, _ = keys(capsys, "list")
    assert token not in out
    rows = {line.split()[1]: line.split() for line in out.splitlines()[1:]}
    assert rows["app"][2:4] == ["inference", "revoked"]
    assert rows["other"][2:4] == ["admin", "active"]
    listed = json.loads(keys(capsys, "list", "--json")[0])
    assert [record["name"] for record in listed] == ["app", "other"]
    assert "digest" not in listed[0]
    assert json.loads(keys(capsys, "revoke", "other", "--json")[0])["revoked_at"] > 0


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["new", "../x"], 2, "key name"),
        (["new", "a", "--scope", "root"], 2, "unknown scopes"),
        (["new", "a", "--expires-in", "soon"], 2, "for instance 90d"),
        (["new", "a", "--expires-in", "1d", "--expires-at", "2099-01-01"], 2, "not both"),
        (["new", "a", "--expires-at", "1999-01-01"], 2, "future"),
        (["revoke", "nobody"], 5, "no key `nobody`"),
    ],
)
def test_mistakes(args: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in keys(capsys, *args, code=code)[1]
