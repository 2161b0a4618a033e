"""YAML of settings: twice is an error, aliases have a bound, errors say file and line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oasis.lab import strict_yaml


def bomb(leaf: str, branch: str, depth: int = 9) -> str:
    """Each line stands for ten of the one before."""
    lines = [f"a0: &a0 {leaf}"]
    lines += [
        f"a{i}: &a{i} {branch.format(','.join([f'*a{i - 1}'] * 10))}" for i in range(1, depth)
    ]
    return "\n".join(lines)


def test_a_key_twice_names_the_key_and_both_lines(tmp_path):
    path = tmp_path / "duplicate_key.yaml"
    path.write_text("name: a\nratio: 0.25\nratio: 0.5\n")
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}:3: ratio: ") + ".*2 and 3$"):
        strict_yaml.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "run:\n  rank: 1\n  rank: 2",
        "policies:\n  - {policy: oasis, policy: random}",
        "ratio: 1\n'ratio': 2",
        "1: a\n0x1: b",
        "a: &a {x: 1}\nb: {<<: *a, <<: *a}",
    ],
)
def test_a_key_twice_is_refused_wherever_it_is(text):
    with pytest.raises(ValueError, match=r"^f:\d+: .*: the key is there twice, in lines \d and \d"):
        strict_yaml.parse(text, "f")


def test_anchors_aliases_and_merges_are_read():
    text = "slow: &slow {rate: 1, rank: 2}\nruns:\n  - *slow\n  - {<<: *slow, rate: 3}\n  - *slow\n"
    slow = {"rate": 1, "rank": 2}
    assert strict_yaml.parse(text, "f")["runs"] == [slow, {"rate": 3, "rank": 2}, slow]


def test_own_keys_come_before_merged_ones_and_earlier_sources_before_later():
    text = """
        a: &a {x: 1, y: 1}
        b: &b {<<: *a, x: 2}
        c: {<<: *b}
        d: {<<: *b, x: 3}
        e: {x: 4, <<: [*b, *a]}
        f: {<<: [*a, *b]}
        g: {"<<": text, =: value}
    """
    a, b, c, d, e, f, g = strict_yaml.parse(text, "f").values()
    assert (a, b, c) == ({"x": 1, "y": 1}, {"x": 2, "y": 1}, b)
    assert (d, e, f) == ({"x": 3, "y": 1}, {"x": 4, "y": 1}, a)
    assert g == {"<<": "text", "=": "value"}


@pytest.mark.parametrize(
    ("leaf", "branch"),
    [("[x, x]", "[{}]"), ("{x: 1}", "{{k: [{}]}}"), ("{x: 1}", "{{<<: [{}]}}")],
)
def test_aliases_that_grow_are_refused_at_once(leaf, branch):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"^f:\d: more than 100,000 values .*aliases written out"):
        strict_yaml.parse(bomb(leaf, branch), "f")
    assert time.perf_counter() - start < 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, flow=st.booleans())
def test_what_was_written_is_read_again(value, flow):
    text = yaml.safe_dump([value, value], default_flow_style=flow, allow_unicode=True)
    assert strict_yaml.parse(text, "f") == [value, value]


def test_long_lists_without_growth_are_read():
    assert len(strict_yaml.parse("a: [" + "1," * 50_000 + "]", "f")["a"]) == 50_000
    # What an alias stands for counts each time.
    assert len(strict_yaml.parse(bomb("[x]", "[{}]", depth=5), "f")) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 5000, "f:1: more than 64 levels"),
        ("a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 300)),
         "f:64: more than 100,000 values or 64 levels"),
        ("a: &a [1, *a]", "f:1: a: the alias is inside its own anchor"),
        ("a: 1\nb: &b {c: {d: *b}}", "f:2: b: the alias is inside its own anchor"),
        ("a: 1\nb: 2026-13-45", "f:2: b: '2026-13-45' cannot be read"),
        ("a: " + "1" * 5000, "f:1: a: '1111"),
        ("a: 0x" + "f" * 5000, "f:1: a: '0xff"),
        ("run:\n- {b: {seed: " + "1" * 5000 + "}}", r"f:2: run\[0\].b.seed: '1111"),
        ("a: !!bool perhaps", "f:1: a: 'perhaps' cannot be read"),
        ("? !!map text\n: 1", "f:1: text: expected a text or a number for a key"),
        ("? [1]\n: 1", "f:1: found unhashable key"),
        ("a: {<<: 3}", "f:1: <<: expected a mapping or a list of them"),
        ("a: !!float ''", "f:1: a: '' cannot be read"),
        ("a: 1\nb: \0", r"f:2: '\\x00' is not allowed"),
        ("a: 1\n---\nb: 2", "f:2: "),
        ("a: *nobody", "f:1: found undefined alias 'nobody'"),
        ("a: !!python/name:os.system ''", "f:1: could not determine a constructor"),
        ("a: 1\n b: 2", "f:2: mapping values are not allowed here"),
    ],
    ids=range(18),
)  # fmt: skip
def test_errors_are_one_line_with_file_and_line(text, says):
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        strict_yaml.parse(text, "f")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"ratio: 1\nname: caf\xe9\n")
    with pytest.raises(ValueError, match="latin.yaml: not UTF-8 text .byte 0xe9 in line 2"):
        strict_yaml.read(tmp_path / "latin.yaml")
    (tmp_path / "utf16.yaml").write_bytes("name: a".encode("utf-16"))
    with pytest.raises(ValueError, match="utf16.yaml: UTF-16 text, expected UTF-8"):
        strict_yaml.read(tmp_path / "utf16.yaml")
    (tmp_path / "mark.yaml").write_bytes("name: a".encode("utf-8-sig"))
    assert strict_yaml.read(tmp_path / "mark.yaml") == {"name": "a"}


def message(path, error: Exception, overrides=()) -> str:
    with pytest.raises(type(error)) as caught, strict_yaml.located(path, overrides):
        raise error
    return str(caught.value)


def test_a_setting_is_located_in_its_file(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(
        "base: wild.yaml\nrun:\n  rank: 0\npolicies:\n  - a\n  - policy: b\n    run: {}\n"
    )
    path.with_name("wild.yaml").write_text("run:\n  words: 3\n\n  dtype: int\n  rank: 1\n")
    assert message(path, ValueError("run.rank: got 0")) == f"{path}:3: run.rank: got 0"
    assert message(path, TypeError("policies[1].run.rank: x")).startswith(f"{path}:7: policies")
    wild = path.with_name("wild.yaml")
    assert message(path, ValueError("run.dtype: got 'int'")).startswith(f"{wild}:4: run.dtype")
    # Of what neither has, the mapping around it in the file itself.
    assert message(path, ValueError("run.absent: x")).startswith(f"{path}:2: run.absent")
    # What no file says is said without one.
    assert message(path, ValueError("ratios: got 3")) == "ratios: got 3"
    assert message(path, ValueError("no setting")) == "no setting"
    assert message(path, ValueError("run.rank: got 0"), ["run.rank=0"]) == "run.rank: got 0"
    assert message(path, ValueError("run.rank: got 0"), ["run.ran=0"]).startswith(f"{path}:3: ")


def test_no_other_yaml_is_read_or_accepted():
    package = Path(strict_yaml.__file__).parents[1]
    elsewhere = [
        path.name
        for folder in (package, package.parent / "bench")
        for path in folder.rglob("*.py")
        if path.name != "strict_yaml.py"
        and re.search(r"yaml\.(safe_|full_)?load|YAMLError", path.read_text("utf-8"))
    ]
    assert elsewhere == []
