"""`edgewise fleet serve` where its packages are missing."""

from __future__ import annotations

import sys

import pytest

from edgewise.cli.main import main


def test_missing_packages_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "edgewise.cloud.fleet.serve", None)
    monkeypatch.delitem(sys.modules, "edgewise.cloud.fleet.serve")

    class Finder:
        """Finds no SQLAlchemy."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "edgewise.cloud.fleet.serve":
                raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "serve"])
    assert ended.value.code != 0
    assert "edgewise[fleet,broker]" in capsys.readouterr().err
