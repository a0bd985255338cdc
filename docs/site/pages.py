"""The pages of the site: those under docs/ as they are read elsewhere too, the examples, and what is generated from code.

Decides which page stands where. A page of docs/ that no contents list, and a link that leads nowhere, are errors. Links to files that
are no pages (tests, sources) become plain text. Writes nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: (?P<title>\S+))?\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S
)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]`]|`[^`\n]*`)*)\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`[^`\n]+`")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".md": "", ".json": "json", ".toml": "toml"}
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)

SHOWN = (
    ("examples", "examples", "Examples", "They run as they are; tests run them too."),
    (
        "src/wardwright/plans",
        "plans",
        "Ready-made plans",
        "They ship with the package, with their cases; tests play them.",
    ),
)
"""Folders whose files are shown as pages: where they are, where they stand in the site, and what is said of them."""

CONTENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("index.md", "tutorial.md")),
    ("Write tools", ("guide/",)),
    (
        "Write policy",
        ("governance.md", "cookbook.md", "provenance.md", "containment.md", "prove.md", "policy/", "plans/"),
    ),
    (
        "Run the gateway",
        ("gateway/", "providers.md", "server-tools.md", "keys.md", "wire-fields.md", "wire-translation.md"),
    ),
    ("Examples", ("examples/",)),
    ("Reference", ("reference/",)),
    ("How it is built", ("comparison.md", "architecture.md", "decisions/", "requirements.md", "changelog.md")),
)
"""What stands where, in order. A folder stands for its README and the pages that one links to, in that order."""


class SiteError(Exception):
    """Pages that cannot be published; one line per problem."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    pages: tuple[str, ...]


@dataclass(slots=True)
class Site:
    """Every page by its path in the site, and the contents."""

    pages: dict[str, str]
    sections: list[Section] = field(default_factory=list[Section])
    problems: list[str] = field(default_factory=list[str])

    def title(self, path: str) -> str:
        """What a page calls itself."""
        found = re.search(r"^# (.+)$", FENCE.sub("", self.pages[path]), re.MULTILINE)
        return found[1].replace("`", "") if found else path


def collect(generated: Mapping[str, str]) -> Site:
    """All pages, linked with each other. `generated` are those that come from code."""
    found = {path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    site = Site({name: path.read_text("utf-8") for name, path in found.items()})
    site.pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text("utf-8")
    site.pages["decisions/README.md"] = _decisions(site)
    shown = _shown_files()
    site.pages.update({name: text for name, (_, text) in shown.items()})
    site.pages.update(generated)
    places = {f"docs/{name}": name for name in found} | {"CHANGELOG.md": "changelog.md", "README.md": "index.md"}
    places |= {file: name for name, (file, _) in shown.items()}
    homes = {name: file for file, name in places.items() if file != "README.md"}
    for name, text in site.pages.items():
        site.pages[name] = _linked(site, name, text, homes.get(name, f"docs/{name}"), places)
    _check_anchors(site)
    _list(site)
    return site


def anchors(text: str) -> set[str]:
    """The places of a page that a link can name."""
    titles = re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(text: str) -> Iterator[str]:
    """Where a page's links lead, without what is shown as code."""
    for found in LINK.finditer(CODE.sub(lambda code: "_" * len(code[0]), FENCE.sub("", text))):
        yield found["target"]


def _decisions(site: Site) -> str:
    rows = [
        f"- [{site.title(name)}]({name.removeprefix('decisions/')})"
        for name in sorted(site.pages)
        if name.startswith("decisions/")
    ]
    return (
        "# Decisions\n\nWhy it is built so, and what was given up for it; one page each.\n\n" + "\n".join(rows) + "\n"
    )


def _shown_files() -> dict[str, tuple[str, str]]:
    """Examples and ready-made plans as pages of their own: page → file, text. Their contents come first."""
    made: dict[str, tuple[str, str]] = {}
    for folder, shown, title, said in SHOWN:
        rows: list[str] = []
        pages: dict[str, tuple[str, str]] = {}
        for path in sorted(
            (ROOT / folder).rglob("*"), key=lambda path: (path.parent, path.name != "README.md", path.name)
        ):
            language = LANGUAGES.get(path.suffix)
            if language is None or "__pycache__" in path.parts or path.name == "__init__.py":
                continue
            file, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            name = shown + file.removeprefix(folder)
            if not language:
                pages[name] = (file, text)
                rows.append(
                    f"- [{name.removeprefix(f'{shown}/').removesuffix('/README.md')}]({name.removeprefix(f'{shown}/')})"
                )
                continue
            fence = "`" * (max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1)
            title_of = name.removeprefix(f"{shown}/")
            pages[f"{name}.md"] = (
                file,
                f'# {title_of}\n\n{fence}{language} title="{file}"\n{text.rstrip()}\n{fence}\n',
            )
            first = re.match(r'"""(.+)|# (.+)', text)
            about = next(filter(None, first.groups()), "").rstrip('"') if first else ""
            rows.append(f"- [{title_of}]({title_of}.md)" + (f": {about}" if about else ""))
        if pages:
            made[f"{shown}/README.md"] = (folder, f"# {title}\n\n{said}\n\n" + "\n".join(rows) + "\n")
            made |= pages
    return made


def _linked(site: Site, name: str, text: str, home: str, places: Mapping[str, str]) -> str:
    """The page with links as the site needs them, and fences with titles as its Markdown writes them."""

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if OUTSIDE.match(found["target"]) or not target:
            return found[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        place = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        page = next(
            (
                one
                for one in (places.get(place), inside, places.get(f"{place}/README.md"), f"{inside}/README.md")
                if one in site.pages
            ),
            None,
        )
        if page is not None:
            to = posixpath.relpath(page, posixpath.dirname(name) or ".")
            return f"{found['image']}[{found['text']}]({to}{'#' if anchor else ''}{anchor})"
        if not (ROOT / place).exists():
            site.problems.append(f"{home}: the link {found['target']} leads nowhere")
        return found["text"]

    if name.endswith("/README.md") and home in {folder for folder, *_ in SHOWN}:
        return text  # made for the site
    parts: list[str] = []
    at = 0
    for fence in FENCE.finditer(text):
        parts.append(_outside_code(text[at : fence.start()], link))
        title = f' title="{fence["title"]}"' if fence["title"] and "=" not in fence["title"] else ""
        shown = fence[0] if not title else fence[0].replace(f" {fence['title']}\n", f"{title}\n", 1)
        parts.append(shown)
        at = fence.end()
    parts.append(_outside_code(text[at:], link))
    return "".join(parts)


def _outside_code(text: str, link: object) -> str:
    """Links replaced, but for what stands in code."""
    spans = [found.span() for found in CODE.finditer(text)]

    def replaced(found: re.Match[str]) -> str:
        inside = any(start < found.start() and found.end() <= end for start, end in spans)
        return found[0] if inside or not callable(link) else str(link(found))

    return LINK.sub(replaced, text)


def _check_anchors(site: Site) -> None:
    known = {name: anchors(text) for name, text in site.pages.items()}
    for name, text in site.pages.items():
        for target in links(text):
            file, _, anchor = target.partition("#")
            if not anchor or OUTSIDE.match(target):
                continue
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) if file else name
            if anchor not in known.get(page, set()):
                site.problems.append(f"{name}: {page} has no heading for #{anchor}")


def _list(site: Site) -> None:
    """The contents; every page is there once."""
    listed: set[str] = set()
    for title, entries in CONTENTS:
        pages: list[str] = []
        for entry in entries:
            found = _folder(site, entry) if entry.endswith("/") else [entry]
            pages.extend(name for name in found if name not in listed)
            listed.update(found)
        site.problems.extend(
            f"{name}: listed in the contents, but not there" for name in pages if name not in site.pages
        )
        site.sections.append(Section(title, tuple(name for name in pages if name in site.pages)))
    site.problems.extend(
        f"docs/{name}: no contents list it; link it from the README of its folder, or name it in docs/site/pages.py"
        for name in site.pages
        if name not in listed
    )


def _folder(site: Site, folder: str) -> list[str]:
    front = f"{folder}README.md"
    found = [front]
    for target in links(site.pages.get(front, "")):
        page = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        if page.startswith(folder) and page not in found and not OUTSIDE.match(target):
            found.append(page)
    return found
