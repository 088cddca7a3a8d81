"""Names and links in the documents exist: files, classes and functions of the request map, links, make targets."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
