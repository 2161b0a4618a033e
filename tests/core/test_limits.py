"""Sizes that keep a file readable, one name for a number, and helpers in their place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES, MOST_OF_A_FUNCTION = 400, 60
FOLDERS = ("oasis", "kernels", "bench", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
FOLDERS_COMPILED = ("csrc", "kernels", "tests")
COMPILED = sorted(path for f in FOLDERS_COMPILED for path in (ROOT / f).rglob("*.[ch]*"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def long_functions(text: str) -> list[str]:
    """Functions of more lines than there may be; a docstring is as long as its contract needs."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            signature = node.body[0].lineno - node.lineno
            lines = signature + (node.end_lineno or 0) - first.lineno + 1
            if lines > MOST_OF_A_FUNCTION:
                found.append(f"{node.name}: {lines} lines")
    return found


def long_compiled_functions(text: str) -> list[str]:
    """The same of C++ and CUDA, by their braces: what opens behind a parenthesis, outermost."""
    found, depth, begin = [], 0, None
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'//.*|"[^"]*"', "", line)
        if begin is None and re.search(r"\)\s*(const\s*)?\{$", code.rstrip()):
            begin, outside = number, depth
        depth += code.count("{") - code.count("}")
        if begin is not None and depth <= outside:
            if number - begin >= MOST_OF_A_FUNCTION:
                found.append(f"line {begin}: {number - begin + 1} lines")
            begin = None
    return found


def ignored_labels(text: str) -> list[int]:
    """Lines on which the label of ignored positions is written as a number."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and node.operand.value == 100
        and isinstance(node.operand.value, int)
    ]


def imported_tests(text: str) -> list[str]:
    """Modules called test_* that a file imports."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return [n for n in names if any(part.startswith("test_") for part in n.split("."))]


def test_no_file_and_no_function_of_the_package_is_too_long():
    texts = {path: path.read_text("utf-8") for path in FILES}
    assert len(texts) > 100
    long = [f"{p}: {n} lines" for p, t in texts.items() if (n := len(t.splitlines())) > MOST_LINES]
    assert long == []
    assert {p.name: found for p, text in texts.items() if (found := long_functions(text))} == {}


def test_no_file_of_the_compiled_parts_is_too_long():
    texts = {path: path.read_text("utf-8") for path in COMPILED}
    assert len(texts) > 40 and {p.suffix for p in texts} == {".h", ".cpp", ".cu", ".cuh"}
    assert [p.name for p, text in texts.items() if len(text.splitlines()) > MOST_LINES] == []
    long = {p.name: found for p, t in texts.items() if (found := long_compiled_functions(t))}
    assert long == {}


def test_the_label_of_ignored_positions_is_written_once():
    # Tests, which say what must hold, write it as the number that users write.
    found = {p.relative_to(ROOT).as_posix(): ignored_labels(p.read_text("utf-8")) for p in FILES}
    assert [path for path, lines in found.items() if lines] == ["oasis/names.py"]
    assert len(found["oasis/names.py"]) == 1


def test_no_test_file_is_too_long_or_imports_another():
    texts = {path: path.read_text("utf-8") for path in TESTS}
    assert len(texts) > 50
    assert [p.name for p, text in texts.items() if len(text.splitlines()) > MOST_LINES] == []
    assert {p.name: found for p, text in texts.items() if (found := imported_tests(text))} == {}


def test_test_files_have_names_of_their_own():
    # Outside packages pytest imports them by their names alone.
    own = [path.name for path in TESTS if not (path.parent / "__init__.py").exists()]
    assert len(own) > 50 and len(own) == len(set(own))


@pytest.mark.parametrize(
    "text",
    ["import test_a", "from test_a import b", "from core import test_a", "from .test_a import b"],
)
def test_an_import_of_a_test_is_found(text):
    assert imported_tests(text) and not imported_tests("import tiny_text, testing")


def test_a_long_function_is_found():
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * MOST_OF_A_FUNCTION) == ["f: 61 lines"]
    assert not long_functions("def f():\n" + body * (MOST_OF_A_FUNCTION - 1))
    head, body = "namespace a {\nvoid f(int x) {\n", "  if (x) { x = 1; }\n"
    assert long_compiled_functions(head + body * 59 + "}\n}\n") == ["line 2: 61 lines"]
    assert not long_compiled_functions(head + body * 58 + "}\n}\n")
