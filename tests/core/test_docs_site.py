"""The documentation site is built, and a link that leads nowhere fails the build."""

import importlib.util
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "mkdocs.yml")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    folder = tmp_path_factory.mktemp("docs") / "pages"
    site.gather(folder)
    return folder


def made(pages, site):
    build(load_config(CONFIG, docs_dir=str(pages), site_dir=str(site), strict=True))


def test_the_site_is_built_with_every_page_and_what_they_link_to(gathered, tmp_path):
    made(gathered, tmp_path / "site")
    for path in ("index.html", "docs/method/index.html", "bench/streams/index.html"):
        assert (tmp_path / "site" / path).is_file()
    assert (tmp_path / "site" / "bench" / "streams" / "draws.yaml").is_file()


@pytest.mark.parametrize("link", ["docs/none.md", "docs/method.md#no-such-heading"])
def test_a_link_that_leads_nowhere_fails(gathered, tmp_path, link):
    pages = tmp_path / "pages"
    for name in ("README.md", "docs/method.md"):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text("# A page\n")
    (pages / "README.md").write_text(f"# First\n\n[a]({link})\n")
    config = load_config(CONFIG, docs_dir=str(pages), site_dir=str(tmp_path / "s"), strict=True)
    config.nav = None
    with pytest.raises(Abort):
        build(config)
