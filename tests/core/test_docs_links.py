"""Links and names of the pages: every relative link leads to a file and a heading that are there,
and every file of the repository that a page names exists.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for folder in ("", "docs", "bench", "bench/results", "bench/streams")
    for page in (ROOT / folder).glob("*.md")
)


def prose(page: Path) -> str:
    """The text without code, where brackets are not links and # begins no heading."""
    text = re.sub(r"(?ms)^\s*```.*?^\s*```", "", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", lambda code: code[0].translate({ord(c): None for c in "[]`"}), text)


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ +(.+?) *$", prose(page))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    wrong = []
    for link in re.findall(r"\]\(([^()\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def missing(text: str) -> list[str]:
    """The files named in a text, from the root on, that do not exist."""
    named = re.findall(r"(?<![\w/.-])(?:bench|csrc|docs|kernels|oasis|tests)/[\w./-]*\w\.\w+", text)
    return sorted({path for path in named if not (ROOT / path).exists()})


def test_there_are_pages():
    assert {"README.md", "docs/method.md", "bench/NOTES.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page):
    assert broken(ROOT / page) == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b\n[1](page.md#a-b) [2](none.md) [3](#c) [4](https://x.y/z) `[5](none.md)`"
    )
    assert broken(page) == ["none.md", "#c"]
    assert missing("`oasis/none.py`, oasis/__init__.py, a/oasis/none.py.") == ["oasis/none.py"]
