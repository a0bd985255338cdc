"""`llms.txt` and `llms-full.txt`: the site for readers that are models, by the convention of llmstxt.org. Writes nothing."""

from __future__ import annotations

import re

from .pages import FENCE, Site

ABOUT = (
    "weakincentives runs an agent's tool calls inside a process, each one typed, governed by policies, and a transaction over session "
    "state and files. wardwright is a gateway that rules on tool calls as they pass on the wire, by one policy plan. Python 3.11 or later."
)

LEFT_OUT = ("examples/", "plans/", "decisions/", "requirements", "changelog")


def index(site: Site) -> str:
    """One line per page: its title, where it is, and its first sentence."""
    lines = ["# weakincentives and wardwright", "", f"> {ABOUT}", ""]
    for section in site.sections:
        lines += [f"## {section.title or 'Start'}", ""]
        for name in section.pages:
            said = summary(site.pages[name])
            lines.append(f"- [{site.title(name)}]({name})" + (f": {said}" if said else ""))
        lines.append("")
    return "\n".join(lines)


def full(site: Site) -> str:
    """Every page but sources, decisions and tables of tests, one after the other."""
    parts = [f"# weakincentives and wardwright\n\n> {ABOUT}\n"]
    for section in site.sections:
        parts.extend(
            f"<!-- {name} -->\n\n{site.pages[name].strip()}\n"
            for name in section.pages
            if not name.startswith(LEFT_OUT)
        )
    return "\n\n".join(parts)


def summary(text: str) -> str:
    """The first sentence of a page's first paragraph."""
    body = FENCE.sub("", text)
    for paragraph in re.split(r"\n\s*\n", body):
        said = " ".join(paragraph.split())
        # Not a heading, a table, a list, or something drawn.
        if said and not paragraph.startswith("    ") and not re.match(r"#|\||[-*] |<|\d+\. |!", said):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", said)
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0][:300]
    return ""
