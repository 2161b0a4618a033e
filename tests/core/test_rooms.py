"""Who imports whom: the trainer stands without the lab, and no modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILED = "oasis._core"


def modules(root: Path) -> dict[str, Path]:
    """Files by the names they are imported by; `kernels` is installed inside the package."""
    found = {}
    for folder, prefix in (("oasis", ()), ("kernels", ("oasis",))):
        for path in (root / folder).rglob("*.py"):
            parts = [*prefix, *path.relative_to(root).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: set[str]) -> Iterator[str]:
    """The modules among `known` that a file imports anywhere, for more than its annotations.

    A submodule counts, and not its package too: that one is imported in any case, and says nothing
    of who needs whom.
    """
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in set(ast.walk(tree)) - guarded:
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield from {inner if inner in known else base} & known


def graph(root: Path) -> dict[str, set[str]]:
    files = modules(root)
    known = {*files, COMPILED}
    return {name: set(imported(name, path, known)) - {name} for name, path in files.items()}


def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    """What is imported for the modules of the package `start`."""
    left = {name for name in edges if f"{name}.".startswith(f"{start}.")}
    assert left, start
    met = set()
    while left:
        met |= left
        left = set().union(*(edges.get(name, set()) for name in left)) - met
    return met


@pytest.mark.parametrize("room", ["oasis.train", "oasis.policies", "oasis.doctor"])
def test_nothing_below_the_lab_imports_it(room):
    met = reached(room, graph(ROOT))
    assert not {name for name in met if name.startswith("oasis.lab")}
    assert not {"oasis.commands", "oasis.cli"} & met


@pytest.mark.parametrize("room", ["oasis.gram", "oasis.policies", "oasis.kernels"])
def test_the_core_and_the_policies_import_no_trainer(room):
    assert not {name for name in reached(room, graph(ROOT)) if name.startswith("oasis.train")}


def test_no_circle_of_imports():
    edges = graph(ROOT)
    assert "oasis.train.scoring" in edges["oasis.train.trainer"]  # the search finds something
    assert "oasis.lab.run" in edges["oasis.commands"]  # inside functions too
    TopologicalSorter(edges).prepare()  # CycleError names them


@pytest.mark.parametrize("late", [False, True])
def test_a_circle_and_a_way_into_the_lab_are_found(tmp_path, late):
    for name in ("train", "lab"):
        (tmp_path / "oasis" / name).mkdir(parents=True)
    indent = "def f():\n    " if late else ""
    (tmp_path / "oasis/train/__init__.py").write_text("")
    (tmp_path / "oasis/train/a.py").write_text(f"{indent}from .b import x\n")
    (tmp_path / "oasis/train/b.py").write_text(f"{indent}from oasis.lab import c\n")
    (tmp_path / "oasis/lab/c.py").write_text(f"{indent}import oasis.train.a\n")
    edges = graph(tmp_path)
    assert "oasis.lab.c" in reached("oasis.train", edges)
    with pytest.raises(CycleError):
        TopologicalSorter(edges).prepare()
