"""Claims of the documentation as a whole: every link leads somewhere, every page is listed, every example is some test's.

One test writes the site in the light run; the others that look at it are heavy, so that it is not written by each worker."""

from __future__ import annotations

import importlib
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^ *```", re.MULTILINE)

READ_BY = {
    "docs/guide/": "tests/weakincentives/test_guide.py",
    "docs/gateway/": "tests/wardwright/http/test_gateway_pages.py",
    "docs/policy/": "tests/wardwright/test_reference.py",
    "docs/policy/plans.md": "tests/wardwright/test_plans.py",
    "docs/governance.md": "tests/wardwright/test_guide.py",
    "docs/cookbook.md": "tests/wardwright/test_cookbook.py",
    "docs/prove.md": "tests/wardwright/test_prove_page.py",
    "docs/provenance.md": "tests/wardwright/test_provenance_page.py",
    "docs/providers.md": "tests/wardwright/providers/test_page.py",
    "docs/server-tools.md": "tests/wardwright/server_tools/test_page.py",
    "docs/keys.md": "tests/wardwright/http/test_auth.py",
    "docs/tutorial.md": "tests/test_tutorial.py",
    "README.md": "tests/weakincentives/test_readme.py",
}
"""Which test runs or compiles what a page shows in fences."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site, written as `make docs` writes them."""
    made = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT)
        assert importlib.import_module("docs.site.__main__").main([str(made)]) == 0
    return made / "docs"


def test_every_link_of_the_site_leads_to_a_page_of_it(folder: Path) -> None:
    """Without asking the network; what leads out of the site would be an address."""
    lost: list[str] = []
    for page in folder.rglob("*.md"):
        text = re.sub(r"^ *(`{3,}).*?^ *\1$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", text)):
            file = target.partition("#")[0]
            if file and not re.match(r"[a-z]+:", target) and not (page.parent / file).is_file():
                lost.append(f"{page.relative_to(folder)}: {target}")
    assert lost == []


@pytest.mark.heavy
def test_every_page_of_docs_is_in_the_site(folder: Path) -> None:
    """Nothing that was written is left out."""
    assert {page.relative_to(DOCS) for page in DOCS.rglob("*.md")} <= {
        page.relative_to(folder) for page in folder.rglob("*.md")
    }


@pytest.mark.heavy
def test_models_find_every_page_in_llms_txt(folder: Path) -> None:
    """One line per page, each of which is there."""
    listed = re.findall(r"^- \[.*?\]\((\S+?)\)", (folder / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(folder).as_posix() for page in folder.rglob("*.md"))


@pytest.mark.heavy
def test_models_can_read_the_whole_of_it_in_one_file(folder: Path) -> None:
    """Tutorial, guides and reference, one after the other."""
    full = (folder / "llms-full.txt").read_text("utf-8")
    for name in ("tutorial.md", "guide/tools.md", "gateway/callers.md", "reference/weakincentives.prompt.md"):
        assert f"<!-- {name} -->" in full


@pytest.mark.heavy
@pytest.mark.parametrize("module", ["weakincentives.prompt", "weakincentives.runtime", "wardwright.in_process"])
def test_the_reference_has_the_public_names_of_a_module(module: str, folder: Path) -> None:
    """Each under a heading of its own."""
    text = (folder / "reference" / f"{module}.md").read_text("utf-8")
    public = getattr(importlib.import_module(module), "__all__", ["GovernancePolicy"])
    assert set(public) <= set(re.findall(r"^## (\w+)$", text, re.MULTILINE))


@pytest.mark.heavy
@pytest.mark.parametrize(("command", "word"), [("wardwright", "wardwright check"), ("wink", "wink run")])
def test_the_reference_has_the_commands(command: str, word: str, folder: Path) -> None:
    """With their options."""
    assert f"## {word}\n" in (folder / "reference" / f"{command}-command.md").read_text("utf-8")


def test_every_example_of_the_pages_is_run_or_compiled_by_a_test() -> None:
    """A page with code that no test reads is a page that will be wrong."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    unread = [
        name
        for page in pages
        if FENCE.search(page.read_text("utf-8"))
        for name in [page.relative_to(ROOT).as_posix()]
        if name not in READ_BY and f"{posixpath.dirname(name)}/" not in READ_BY
    ]
    assert unread == []


@pytest.mark.parametrize(("page", "test"), READ_BY.items())
def test_the_test_of_a_page_is_there_and_names_it(page: str, test: str) -> None:
    """The table above is not hopeful."""
    assert posixpath.basename(page.rstrip("/")) in (ROOT / test).read_text("utf-8")


def test_a_link_that_leads_nowhere_and_an_unlisted_page_are_told(tmp_path: Path) -> None:
    """The check itself finds what it is for."""
    copied = tmp_path / "project"
    (copied / "docs" / "site").mkdir(parents=True)
    for file in (DOCS / "site").glob("*.py"):
        (copied / "docs" / "site" / file.name).write_text(file.read_text("utf-8"), "utf-8")
    (copied / "CHANGELOG.md").write_text("# Changelog\n", "utf-8")
    (copied / "docs" / "lonely.md").write_text("# Lonely\n\n[there](nowhere.md)\n", "utf-8")

    program = "from docs.site.pages import collect; print('\\n'.join(collect({}).problems))"
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=copied, capture_output=True, encoding="utf-8", check=True
    ).stdout

    assert "docs/lonely.md: the link nowhere.md leads nowhere\n" in told
    assert "docs/lonely.md: no contents list it;" in told
