"""Names and links in the documents exist: files, classes and functions of the request map, links, make targets, commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from edgewise.cli.main import build
from edgewise.cli.models import app as models_app

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "edge": ROOT / "edge" / "edgewise",
    "cloud": ROOT / "cloud" / "edgewise",
    "models": ROOT / "models" / "edgewise",
    "kernels": ROOT / "kernels" / "edgewise",
}
NAMED = re.findall(
    r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)(?::([\w.]+))?`", (ROOT / "docs" / "request-map.md").read_text()
)
SHORTHAND = {"api/", "serving/", "edge/", "cloud/", "models/", "kernels/"}
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def place_of(name: str) -> Path:
    if name.startswith(("appliance/", "edge/edgewise", "models/edgewise", "kernels/edgewise")):
        return ROOT / name
    return PLACES.get(name.partition("/")[0], ROOT / "appliance" / "edgewise") / name


def defined(path: Path) -> set[str]:
    """Functions and classes of a file wherever they stand, methods as Class.method."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_the_map_names_many_places() -> None:
    assert len([name for name, _ in NAMED if name not in SHORTHAND]) > 40


@pytest.mark.parametrize(("name", "symbol"), sorted({pair for pair in NAMED if pair[0] not in SHORTHAND}))
def test_each_place_on_the_map_exists(name: str, symbol: str) -> None:
    path = place_of(name)
    assert path.exists(), f"{name} is not in the tree"
    assert not symbol or symbol in defined(path), f"{name} defines no {symbol}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z]+)", (ROOT / "README.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is in the README only"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"(docs/{page.name})" in (ROOT / "README.md").read_text()


def test_every_models_command_is_on_the_models_page() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    for command in models_app.registered_commands:
        assert f"edgewise models {command.name or command.callback.__name__}" in page, command  # type: ignore[union-attr]


def sources() -> list[Path]:
    folders = ("appliance", "edge", "cloud", "models", "kernels")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def missing_command(words: list[str], command: Any) -> str | None:
    """The first word that is none of the group's commands; arguments and options are not looked at."""
    for word in words:
        known = getattr(command, "commands", None)
        if known is None or word.startswith("-"):
            return None
        if word not in known:
            return word
        command = known[word]
    return None


def test_every_command_that_documents_and_messages_name_exists() -> None:
    """A remedy that is no command is worse than none."""
    root = typer.main.get_command(build())
    named = {
        (path.name, words)
        for path in [*DOCUMENTS, *sources()]
        for words in re.findall(r"`edgewise ((?:[a-z-]+ ?)+)", path.read_text())
    }
    assert len(named) > 100
    assert not [(place, words) for place, words in sorted(named) if missing_command(words.split(), root)]


PACKAGES = "api|cloud|core|edge|engine|kernels|models|pipeline|security|serving|wire"
SOURCE_ROOTS = [ROOT / name / "edgewise" for name in ("appliance", "edge", "cloud", "models", "kernels")]


def modules(dotted: str) -> list[Path]:
    """The files that may be meant by "engine.pool.pool"."""
    parts = dotted.split(".")
    places = [root.joinpath(*parts) for root in SOURCE_ROOTS]
    return [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]


def test_every_class_that_comments_and_documents_name_is_where_they_say() -> None:
    """`engine.scheduler.Scheduler`: a name that moved away misleads whoever follows it."""
    named = {
        (str(path.relative_to(ROOT)), dotted, name)
        for path in [*DOCUMENTS, *sources()]
        for dotted, name in re.findall(rf"`((?:{PACKAGES})(?:\.[a-z_0-9]+)+)\.([A-Z]\w+)", path.read_text())
    }
    assert len(named) > 60
    wrong = [
        (place, f"{dotted}.{name}")
        for place, dotted, name in sorted(named)
        if not any(re.search(rf"\b{name}\b", module.read_text()) for module in modules(dotted))
    ]
    assert not wrong
