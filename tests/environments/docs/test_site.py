"""Claims of `make docs`: the site builds strictly, and a browser needs nothing from elsewhere to show it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("build")
    command = [sys.executable, "-m", "docs.site", str(made), "--html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made / "site"


def test_the_pages_are_built(site: Path) -> None:
    """Those written by hand, those made from code, and those for models."""
    for name in ("index.html", "tutorial.html", "guide/tools.html", "reference/weakincentives.prompt.html", "llms.txt"):
        assert (site / name).is_file()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host."""
    fetched = [
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\"\s>]+)|<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+href=\"?(https?:[^\"\s>]+)",
            page.read_text("utf-8"),
        )
    ]
    assert fetched == []


def test_code_with_a_file_name_is_code(site: Path) -> None:
    """The name stands above it; a fence that is not understood would swallow the headings behind it."""
    text = (site / "tutorial.html").read_text("utf-8")
    assert "shop.yaml" in text
    assert "```" not in text


def test_what_llms_txt_points_to_is_there(site: Path) -> None:
    """Texts, not pages: readers that are models need no HTML."""
    targets = re.findall(r"^- \[.*?\]\((\S+?)\)", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert targets
    assert [target for target in targets if not (site / target).is_file()] == []
