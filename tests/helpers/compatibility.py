"""docs/compatibility.md, made of what the tests in tests/train say they show.

A test says it by `@pytest.mark.shows(kind, set-up, what happens)`. To write the page again:

    python tests/helpers/compatibility.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
HEAD = """# What works with what

Each line is shown by a test, and this page is made from the tests
(`tests/helpers/compatibility.py`): a set-up works as the plain trainer does, with selection, or is
refused with what to do instead. What stands on no line has not been tried.
"""
TABLES = {  # dicts whose keys are set-ups: their kind, and what happens
    "SETUPS": ('`policy="full"` and the plain `Trainer`', "equal, step for step"),
    "SFT": ('`policy="full"` and the plain `SFTTrainer`', "equal, step for step"),
    "FAMILIES": ("Families of models", "works: scores as by autograd, LoRA trains"),
}


def shown() -> dict[str, list[tuple[str, str, str]]]:
    """By kind: set-up, what happens, file of the test."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted((ROOT / "tests" / "train").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.shows":
                kind, what, happens = (ast.literal_eval(argument) for argument in node.args)
                found.setdefault(kind, []).append((what, happens, path.name))
            if isinstance(node, ast.Assign) and (table := TABLES.get(ast.unparse(node.targets[0]))):
                names = [ast.literal_eval(key) for key in node.value.keys]
                rows = [(name, table[1], path.name) for name in names]
                found.setdefault(table[0], []).extend(rows)
    return found


def page() -> str:
    parts = [HEAD]
    for kind, lines in sorted(shown().items()):
        parts += [f"\n## {kind}\n\n", "| set-up | | test |\n|---|---|---|\n"]
        parts += [f"| {a} | {b} | [{c[5:-3]}](../tests/train/{c}) |\n" for a, b, c in sorted(lines)]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
