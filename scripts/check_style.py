"""The code budget, on the tree given: `python -m scripts.check_style [TREE]`. Exits 1 if a place breaks it.

Everywhere: files of at most 500 lines, functions of at most 80, no relative import. In the product's source roots also:
fewer than 3 % of functions over 50 lines, median at most 10, nine in ten at most 30, under 5 % of imports inside
functions, and no two modules that import each other. A function's lines are those of its body without its docstring.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("appliance", "edge", "cloud", "models", "kernels")
OTHER_ROOTS = ("tests", "scripts")
MAX_FILE = 500
MAX_FUNCTION = 80
LONG_FUNCTION = 50
MAX_LONG_SHARE = 0.03
MAX_MEDIAN = 10
MAX_P90 = 30
MAX_INNER_IMPORT_SHARE = 0.05

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """Facts about one file."""

    path: Path
    name: str
    lines: int
    functions: list[tuple[str, int, int]] = field(default_factory=list)  # name, first line, length
    relative: list[int] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)  # modules or names imported at module level
    outer_imports: int = 0
    inner_imports: int = 0


def body_lines(function: Function) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None and len(body) > 1:
        body = body[1:]
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Full dotted names that a statement may bind: `from a import b` gives `a` and `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def read(path: Path, base: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    parts = path.relative_to(base).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = Module(path=path, name=name, lines=len(text.splitlines()))
    tree = ast.parse(text, str(path))
    inner = {id(node) for function in ast.walk(tree) if isinstance(function, Function) for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            module.functions.append((node.name, node.lineno, body_lines(node)))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.level:
                module.relative.append(node.lineno)
            if id(node) in inner:
                module.inner_imports += 1
            else:
                module.outer_imports += 1
                module.imports.update(imported(node))
    return module


def local_faults(modules: list[Module], tree: Path) -> Iterator[str]:
    """Faults of single files."""
    for module in modules:
        place = module.path.relative_to(tree)
        if module.lines > MAX_FILE:
            yield f"{place}: {module.lines} lines; a file has at most {MAX_FILE}"
        for name, line, length in module.functions:
            if length > MAX_FUNCTION:
                yield f"{place}:{line}: {name} has {length} lines; a function has at most {MAX_FUNCTION}"
        for line in module.relative:
            yield f"{place}:{line}: a relative import; name the package"


def two_way_pairs(modules: list[Module]) -> Iterator[str]:
    """Modules that import each other at module level."""
    known = {module.name: module for module in modules}
    for module in modules:
        for other in sorted(module.imports & known.keys()):
            if module.name < other and module.name in known[other].imports:
                yield f"{module.name} and {other} import each other"


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def whole_faults(modules: list[Module]) -> Iterator[str]:
    """Faults of the product's code as a whole; prints its figures."""
    lengths = [length for module in modules for _, _, length in module.functions]
    if not lengths:
        yield "no functions found in the source roots"
        return
    long_share = sum(length > LONG_FUNCTION for length in lengths) / len(lengths)
    inner = sum(module.inner_imports for module in modules)
    inner_share = inner / max(1, inner + sum(module.outer_imports for module in modules))
    median, p90 = statistics.median(lengths), percentile(lengths, 0.9)
    print(
        f"style: {len(modules)} files, {sum(module.lines for module in modules)} lines, {len(lengths)} functions: "
        f"median {median:g} lines, p90 {p90}, {long_share:.1%} over {LONG_FUNCTION}; "
        f"{inner_share:.1%} of imports inside functions"
    )
    if long_share >= MAX_LONG_SHARE:
        yield f"{long_share:.1%} of functions are over {LONG_FUNCTION} lines; the bound is {MAX_LONG_SHARE:.0%}"
    if median > MAX_MEDIAN:
        yield f"the median function has {median:g} lines; the bound is {MAX_MEDIAN}"
    if p90 > MAX_P90:
        yield f"one function in ten has {p90} lines or more; the bound is {MAX_P90}"
    if inner_share >= MAX_INNER_IMPORT_SHARE:
        yield f"{inner_share:.1%} of imports are inside functions; the bound is {MAX_INNER_IMPORT_SHARE:.0%}"
    yield from two_way_pairs(modules)


def find(tree: Path, roots: tuple[str, ...]) -> list[Module]:
    return [read(path, tree / root) for root in roots for path in sorted((tree / root).rglob("*.py"))]


def main() -> None:
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve()
    product, others = find(tree, SOURCE_ROOTS), find(tree, OTHER_ROOTS)
    faults = [*local_faults([*product, *others], tree), *whole_faults(product)]
    for fault in faults:
        print(f"style: {fault}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
