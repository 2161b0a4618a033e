"""What a type checker sees: of user code, and of the compiled core."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from oasis import _core

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "oasis" / "_core.pyi"

USER_CODE = """
import torch
import oasis

x = torch.randn(4, 8)
labels = torch.zeros(4, dtype=torch.int64)
reveal_type(oasis.select(x))  # Selection
reveal_type(oasis.Selector(0.25).select(x))  # Selection
whole = oasis.head_gram(x, x, labels, labels, num_samples=1)
reveal_type(whole)  # HeadGram
part = oasis.head_gram(x, x, labels, labels, num_samples=1, vocab_range=(0, 4))
reveal_type(part)  # HeadGramPartial
reveal_type(oasis.merge([part]))  # HeadGram
reveal_type(oasis.grad_gram(x))  # Tensor
reveal_type(oasis.siren(whole.gram))  # SirenResult
reveal_type(oasis.Selector().threshold)  # Tensor
oasis.merge([whole])  # error
oasis.select(x, ratio="a quarter")  # error
"""


def test_user_code_is_given_types(tmp_path, monkeypatch):
    mypy = pytest.importorskip("mypy.api")
    file = tmp_path / "user.py"
    file.write_text(USER_CODE)
    monkeypatch.chdir(ROOT)  # where oasis is found, and what `make lint` has read is kept
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    out, problems, _ = mypy.run(["--config-file=pyproject.toml", "--no-pretty", str(file)])
    revealed = dict(re.findall(r"user\.py:(\d+): (?:note: Revealed type is \"([^\"]+)\")?", out))
    seen = {int(line): name.rpartition(".")[2] or "error" for line, name in revealed.items()}
    expected = {
        number: line.partition("# ")[2]
        for number, line in enumerate(USER_CODE.splitlines(), 1)
        if "# " in line
    }
    assert seen == expected, out + problems


def stubs(kind: type[ast.AST]):
    return [node for node in ast.parse(STUB.read_text()).body if isinstance(node, kind)]


def test_the_stub_has_the_names_of_the_compiled_core():
    typed = {node.target.id for node in stubs(ast.AnnAssign)}
    typed |= {node.name for node in stubs(ast.FunctionDef)}
    source = "".join(path.read_text() for path in ROOT.glob("csrc/*bindings.cpp"))
    assert typed == set(re.findall(r"\bm\.(?:def|attr)\(\"(\w+)\"", source))


def test_the_stub_has_the_positions_of_the_compiled_core():
    for function in stubs(ast.FunctionDef):
        if hasattr(_core, function.name) and not function.args.kwarg:
            document = getattr(_core, function.name).__doc__
            count = len(set(re.findall(r"\barg\d+:", document)))
            assert len(function.args.posonlyargs) == count, document


def test_the_stub_has_the_keywords_of_the_compiled_core():
    """Those that the bindings read, of functions and of the dictionaries for CUDA."""
    typed = {f.name: [a.arg for a in f.args.kwonlyargs] for f in stubs(ast.FunctionDef)}
    typed |= {c.name: [field.target.id for field in c.body] for c in stubs(ast.ClassDef)}
    readers = {
        "head_block": "head_block",
        "head_reduce": "head_reduce",
        "_Gram": "cuda_gram_of",
        "_Siren": "cuda_siren_of",
        "_Oris": "cuda_oris_of",
        "_Step": "select_fields",
    }
    source = "".join(path.read_text() for path in ROOT.glob("csrc/*bindings.cpp"))
    for name, reader in readers.items():
        body = re.search(rf" {reader}\([^;]*?\) {{\n(.*?)\n}}\n", source, re.DOTALL)[1]
        read = re.findall(r"(?:field<.+>|pointer<.+>)\(k, \"(\w+)\"\)", body)
        assert read and sorted(typed[name]) == sorted(read), name
