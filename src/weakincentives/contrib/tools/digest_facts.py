"""What can be said of one file by its name and content: language, lines, symbols, first words.

Decides languages, key files and excludes as data. Pure: the same name and content give the same facts, so they may be
kept. Never runs what it reads; a file that cannot be parsed is looked at line by line instead.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

from ...frozen import frozen

LANGUAGES: Final = {
    "bash": "Shell",
    "c": "C",
    "cc": "C++",
    "cfg": "INI",
    "cpp": "C++",
    "cs": "C#",
    "css": "CSS",
    "csv": "CSV",
    "go": "Go",
    "h": "C",
    "hpp": "C++",
    "html": "HTML",
    "ini": "INI",
    "java": "Java",
    "js": "JavaScript",
    "json": "JSON",
    "jsx": "JavaScript",
    "kt": "Kotlin",
    "lua": "Lua",
    "md": "Markdown",
    "mjs": "JavaScript",
    "php": "PHP",
    "proto": "Protocol Buffers",
    "py": "Python",
    "pyi": "Python",
    "rb": "Ruby",
    "rs": "Rust",
    "rst": "reStructuredText",
    "scala": "Scala",
    "sh": "Shell",
    "sql": "SQL",
    "swift": "Swift",
    "toml": "TOML",
    "ts": "TypeScript",
    "tsx": "TypeScript",
    "txt": "Text",
    "xml": "XML",
    "yaml": "YAML",
    "yml": "YAML",
}
"""Language by the ending of the name."""

NAMED: Final = {"dockerfile": "Dockerfile", "makefile": "Makefile", "gemfile": "Ruby", "rakefile": "Ruby"}
"""Language by the whole name, in lower case."""

OTHER: Final = "Other"

KEY_FILES: Final = frozenset(
    [
        "readme",
        "readme.md",
        "readme.rst",
        "readme.txt",
        "contributing.md",
        "changelog.md",
        "architecture.md",
        "agents.md",
        "license",
        "makefile",
        "justfile",
        "dockerfile",
        "compose.yaml",
        "docker-compose.yml",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "requirements.txt",
        "tox.ini",
        "noxfile.py",
        "conftest.py",
        "package.json",
        "tsconfig.json",
        "vite.config.ts",
        "cargo.toml",
        "go.mod",
        "pom.xml",
        "build.gradle",
        "build.gradle.kts",
        "gemfile",
        "composer.json",
        "cmakelists.txt",
        "main.py",
        "__main__.py",
        "app.py",
        "cli.py",
        "manage.py",
        "wsgi.py",
        "asgi.py",
        "index.js",
        "index.ts",
        "main.ts",
        "main.js",
        "main.go",
        "main.rs",
        "lib.rs",
        "server.js",
        "server.ts",
    ]
)
"""Names, in lower case, of the files that a newcomer opens first."""

EXCLUDES: Final = (
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv",
    "env",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
    ".cache",
    ".idea",
    ".vscode",
    ".DS_Store",
    ".hypothesis",
    ".gradle",
    ".next",
    "bower_components",
    "dist",
    "build",
    "target",
    "coverage",
    "htmlcov",
    "*.egg-info",
    "*.pyc",
    "*.pyo",
    "*.class",
    "*.min.js",
    "*.min.css",
    "*.map",
)
"""Globs of what people did not write: by name anywhere, or with a slash by whole path."""

_NAME = r"([A-Za-z_$][\w$]*)"
_PATTERNS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "Python": (
        ("class", rf"^[ \t]*class[ \t]+{_NAME}"),
        ("def", rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{_NAME}"),
    ),
    "JavaScript": (
        ("class", rf"^(?:export[ \t]+)?(?:default[ \t]+)?class[ \t]+{_NAME}"),
        ("function", rf"^(?:export[ \t]+)?(?:default[ \t]+)?(?:async[ \t]+)?function[ \t]*\*?[ \t]*{_NAME}"),
        ("const", rf"^export[ \t]+(?:const|let|var)[ \t]+{_NAME}"),
    ),
    "TypeScript": (
        ("class", rf"^(?:export[ \t]+)?(?:default[ \t]+)?(?:abstract[ \t]+)?class[ \t]+{_NAME}"),
        ("interface", rf"^(?:export[ \t]+)?interface[ \t]+{_NAME}"),
        ("type", rf"^(?:export[ \t]+)?type[ \t]+{_NAME}"),
        ("enum", rf"^(?:export[ \t]+)?(?:const[ \t]+)?enum[ \t]+{_NAME}"),
        ("function", rf"^(?:export[ \t]+)?(?:default[ \t]+)?(?:async[ \t]+)?function[ \t]*\*?[ \t]*{_NAME}"),
        ("const", rf"^export[ \t]+(?:const|let|var)[ \t]+{_NAME}"),
    ),
    "Go": (
        ("func", rf"^func[ \t]+(?:\([^()\n]*\)[ \t]*)?{_NAME}"),
        ("type", rf"^type[ \t]+{_NAME}"),
    ),
    "Rust": (
        ("fn", rf"^[ \t]*(?:pub(?:\([a-z: ]*\))?[ \t]+)?(?:async[ \t]+)?(?:unsafe[ \t]+)?fn[ \t]+{_NAME}"),
        ("type", rf"^(?:pub(?:\([a-z: ]*\))?[ \t]+)?(?:struct|enum|trait|type|mod|union)[ \t]+{_NAME}"),
    ),
    "Java": (("type", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,4}}(?:class|interface|enum|record)[ \t]+{_NAME}"),),
    "Kotlin": (
        ("type", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,4}}(?:class|interface|object)[ \t]+{_NAME}"),
        ("fun", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,4}}fun[ \t]+{_NAME}"),
    ),
    "C#": (("type", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,4}}(?:class|interface|enum|struct|record)[ \t]+{_NAME}"),),
    "C": (("type", rf"^(?:typedef[ \t]+)?(?:struct|enum|union)[ \t]+{_NAME}"),),
    "C++": (("type", rf"^[ \t]*(?:class|struct|enum|namespace)[ \t]+{_NAME}"),),
    "Ruby": (
        ("class", rf"^[ \t]*(?:class|module)[ \t]+{_NAME}"),
        ("def", r"^[ \t]*def[ \t]+((?:self\.)?[A-Za-z_]\w*[?!]?)"),
    ),
    "PHP": (
        ("type", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,3}}(?:class|interface|trait)[ \t]+{_NAME}"),
        ("function", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,3}}function[ \t]+&?{_NAME}"),
    ),
    "Swift": (
        ("type", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,3}}(?:class|struct|enum|protocol)[ \t]+{_NAME}"),
        ("func", rf"^[ \t]*(?:[a-z]+[ \t]+){{0,3}}func[ \t]+{_NAME}"),
    ),
    "Shell": (("function", r"^(?:function[ \t]+)?([A-Za-z_][\w-]*)[ \t]*\(\)"),),
    "Makefile": (("target", r"^([A-Za-z_][\w.-]*):(?!=)"),),
    "SQL": (("table", r"(?i)^[ \t]*create[ \t]+(?:table|view)[ \t]+(?:if[ \t]+not[ \t]+exists[ \t]+)?([\w.\"]+)"),),
    "Markdown": (("heading", r"^#{1,3}[ \t]+([^\n]+)"),),
}
"""What stands out in a language, one line at a time: kind and pattern. Read once, linear in the text."""

_compiled: Final = {
    language: tuple((kind, re.compile(pattern, re.MULTILINE)) for kind, pattern in patterns)
    for language, patterns in _PATTERNS.items()
}

MAX_SYMBOLS: Final = 500
_LONGEST_NAME: Final = 80
_LONGEST_ABOUT: Final = 120


@frozen
class Symbol:
    """Something with a name in a file."""

    kind: str
    name: str
    line: int
    """Counted from 1."""


@frozen
class FileFacts:
    """What the content of a file says."""

    lines: int = 0
    symbols: tuple[Symbol, ...] = ()
    """In the order of the file; the first 500."""
    about: str = ""
    """Its first words: a docstring's first line, a heading."""
    is_binary: bool = False


def language_of(name: str) -> str:
    """By the file's name alone."""
    lower = name.lower()
    stem, dot, ending = lower.rpartition(".")
    return NAMED.get(lower) or (LANGUAGES.get(ending, OTHER) if dot and stem else OTHER)


def facts_of(language: str, content: bytes) -> FileFacts:
    """Read the content once."""
    if b"\0" in content[:8_192]:
        return FileFacts(is_binary=True)
    text = content.decode("utf-8", "replace")
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    if language == "Python":
        found = _python(text)
        if found is not None:
            return FileFacts(lines, *found)
    symbols = _by_line(language, text)
    about = symbols[0].name if symbols and language == "Markdown" else ""
    return FileFacts(lines, symbols, about)


def _python(text: str) -> tuple[tuple[Symbol, ...], str] | None:
    """Classes with their methods, functions, and the docstring's first line; None when it is no Python of today."""
    try:
        module = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    symbols: list[Symbol] = []
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            symbols.append(Symbol("class", short(node.name), node.lineno))
            symbols += (
                Symbol("def", short(f"{node.name}.{inner.name}"), inner.lineno)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            symbols.append(Symbol("def", short(node.name), node.lineno))
    first = (ast.get_docstring(module) or "").strip().partition("\n")[0]
    return tuple(symbols[:MAX_SYMBOLS]), short(first, _LONGEST_ABOUT)


def _parsed(text: str) -> ast.Module:
    """The syntax tree. The parser warns of backslashes it does not know; they are not our user's to correct."""
    if "\\" not in text:
        return ast.parse(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _by_line(language: str, text: str) -> tuple[Symbol, ...]:
    found: list[tuple[int, str, str]] = []
    for kind, pattern in _compiled.get(language, ()):
        for number, match in enumerate(pattern.finditer(text)):
            if number == MAX_SYMBOLS:
                break
            found.append((match.start(1), kind, match[1]))
    found.sort()
    symbols: list[Symbol] = []
    line, counted = 1, 0
    for start, kind, name in found[:MAX_SYMBOLS]:
        line += text.count("\n", counted, start)
        counted = start
        symbols.append(Symbol(kind, short(name.strip(" #\r")), line))
    return tuple(symbols)


def short(text: str, most: int = _LONGEST_NAME) -> str:
    """One printable line: what a file says must not look like part of the prompt around it."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: most * 2]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shown_path(path: str) -> str:
    """A path as the model can use it: whole, and on one line whatever a disk allows in names."""
    return path if path.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in path)
