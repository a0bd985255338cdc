"""Claims of the guide: its code runs page by page, prints what its comments say, and its links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = {page.name: page.read_text("utf-8") for page in sorted(GUIDE.glob("*.md"))}
LESSONS = {name: text for name, text in PAGES.items() if name != "README.md"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# prints(?: (.*))?$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The places of a page that a link can name, as they are named where it is published."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_of_a_page_prints_what_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks run one after the other in one module, with the tests they define; comments say all that is printed."""
    text = LESSONS[name]
    module = ModuleType(f"guide_{name.removesuffix('.md').replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # so that stored sessions find the page's classes again
    monkeypatch.chdir(tmp_path)
    blocks = list(FENCE.finditer(text))
    assert blocks
    for block in blocks:
        line = text.count("\n", 0, block.start(2))
        code = compile("\n" * line + block[2], str(GUIDE / name), "exec", dont_inherit=True)
        known = set(vars(module))
        exec(code, vars(module))
        for test in sorted(word for word in vars(module).keys() - known if word.startswith("test_")):
            vars(module)[test]()
        assert capsys.readouterr().out.splitlines() == SHOWN.findall(block[2]), f"{name}, from line {line + 1} on"


@pytest.mark.parametrize("name", PAGES)
def test_every_fence_of_a_page_is_code_that_runs(name: str) -> None:
    """No block is shown that the test above passes over."""
    assert {language for language, _ in FENCE.findall(PAGES[name])} <= {"python"}
    assert PAGES[name].count("```") == 2 * len(FENCE.findall(PAGES[name]))


@pytest.mark.parametrize("name", PAGES)
def test_the_links_of_a_page_lead_somewhere(name: str) -> None:
    """Each names a file that is there and, after a #, a heading of it."""
    for target in LINK.findall(prose(PAGES[name])):
        file, _, anchor = target.partition("#")
        path = (GUIDE / file).resolve() if file else GUIDE / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text("utf-8")), target


def test_the_contents_list_every_page() -> None:
    """Whoever starts at the front finds everything."""
    assert set(LINK.findall(PAGES["README.md"])) >= set(LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_stays_short(name: str) -> None:
    """Two printed pages: what does not fit belongs elsewhere, or nowhere."""
    assert len(LESSONS[name].splitlines()) <= 150
