"""Gather the repository's pages, and the files that they link to, for `mkdocs build` (make docs).

The pages link to each other, to code and to tables as they lie in the repository, so the site has
the same layout: README.md is its first page.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("", "docs", "bench", "bench/results", "bench/streams", "examples")


def pages() -> list[Path]:
    """Every page, as a path from the root on."""
    return sorted(p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).glob("*.md"))


def links(page: Path) -> Iterator[Path]:
    """The files in the repository that a page links to or shows, as paths from the root on."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", text):
        target = (ROOT / page.parent / link).resolve()
        if "://" not in link and target.is_file() and target.is_relative_to(ROOT):
            yield target.relative_to(ROOT)


def gather(folder: Path) -> None:
    """Copy pages and what they link to into `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in {*pages(), *(link for page in pages() for link in links(page))}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path)


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
