"""Which case files and tests cite which numbered requirement of governance; prints docs/requirements.md.

Nothing is listed by hand: a case counts by its name or by the comment at the head of its file, a test by its docstring.

    python tests/wardwright/requirements.py docs/requirements.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
CITED = re.compile(r"\bG\d+\b")

OWNED = {
    "G1": "Three gates, one pure function",
    "G2": "Text and calls of a reply are judged before they are released; streams too",
    "G3": "Facts are what the session's ledger has not seen; retries count once",
    "G4": "Four wires lower into the same facts; what is not understood is refused",
    "G5": "Phases, argument repair, status of results",
    "G6": "The operator's catalog names tools; definitions are pinned",
    "G7": "What callers claim is believed from trusted paths only",
    "G8": "No raw arguments or results are kept; the working set is sealed",
    "G10": "Whatever is doubtful in a plan is refused, all at once, with its place",
    "G11": "Kinds of rules",
    "G12": "Actions mean the same everywhere; which gate has which",
    "G13": "Matchers; doubt counts against the call",
    "G14": "`allowed_tools` in its three modes",
    "G15": "Loops: what is equal, when a threshold fires",
    "G16": "Sequences, their windows and what ends them",
    "G17": "State machines",
    "G18": "Deny overrides; conflicts are reported",
    "G19": "Whatever fails is closed",
    "G20": "Sessions and scopes",
    "G22": "The ledger is the truth, the transcript a claim",
    "G23": "Approvals",
    "G24": "The same conversation in every wire: same facts, same ruling",
    "G25": "Bundles attached to a request",
    "G26": "Turns and events; what can be seen of whose tools",
    "G27": "What a denied call leaves behind",
    "G28": "Shadow rules, owners, messages, exceptions",
    "G30": "History costs the same at any length, and survives plans and restarts",
    "G31": "One transaction per gate, compare-and-swap, govern again on conflict",
    "G32": "Receipts explain and can be judged again; they are chained",
    "G33": "Filters, pages, export",
    "G34": "A refusal says which rule, which tools, and what to do, in the wire's own shape",
    "G40": "Engines of server tools",
    "G41": "Server tools run in rounds of one answer",
    "G42": "Server tools after routing; fallback and breakers inside the ruling",
    "G43": "Tool mediation, on the request and on what comes back",
    "G44": "What a model may reach, and switches that are on record",
    "G50": "The same plan in process",
    "G51": "check, simulate, replay, diff, prove, report",
    "G60": "One file: an artifact or a deployment",
    "G61": "The command and its exit codes",
    "G62": "Case files",
    "G63": "HTTP: addresses, tokens, roles, hosts and origins, stops and releases",
    "G64": "Keys and their rotation; overload; erasure",
}

ELSEWHERE = {
    "G21": "provenance of arguments and intent",
}
"""Numbers that are shown elsewhere."""

PROBLEMS = {
    "Write hardening": ("write hardening", "seed/write_hardening"),
    "Injection containment": ("injection containment", "seed/injection"),
    "Loop and cost control": ("loop and cost", "seed/loop"),
    "Hosted-tool visibility": ("hosted visibility", "hosted"),
    "Least privilege": ("least privilege", "allowed"),
}
"""Problem → the phrase its cases are told by, and the case file that plays the example it was first described with."""


def case_texts() -> Iterator[tuple[Path, str]]:
    """Case files and refused plans, with the text that may cite: head comments of file and plan, and names of cases."""
    found = [
        *(PROJECT / "tests" / "cases").rglob("*.y*ml"),
        *(PROJECT / "src" / "wardwright" / "plans").rglob("*.yaml"),
    ]
    for path in sorted(found):
        lines = path.read_text("utf-8").splitlines()
        cases = [line for line in lines if line.startswith("- case:")]
        if path.name.endswith(".plan.yaml") or path.name == "plan.yaml":
            continue
        plan = path.with_suffix(".plan.yaml")
        if not plan.is_file():
            plan = path.with_name("plan.yaml")
        heads = [lines, plan.read_text("utf-8").splitlines() if plan.is_file() and cases else []]
        yield path, "\n".join([*cases, *(line for head in heads for line in head[:1] if line.startswith("#"))])


def claim_texts() -> Iterator[tuple[Path, str]]:
    """Test modules, with the docstrings of their tests."""
    for path in sorted((PROJECT / "tests" / "wardwright").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        yield path, "\n".join(ast.get_docstring(node) or "" for node in functions)


def citing(number: str, texts: list[tuple[Path, str]]) -> list[Path]:
    return [path for path, text in texts if number in CITED.findall(text)]


def telling(problem: str, texts: list[tuple[Path, str]]) -> list[Path]:
    phrase, first = PROBLEMS[problem]
    return [path for path, text in texts if phrase in text.lower() or _short(path) == first]


def page() -> str:
    """The page, in Markdown."""
    told, tested = list(case_texts()), list(claim_texts())
    lines = [
        "# What shows which requirement",
        "",
        "Numbers of the governance engine and of the gateway with the case files and tests that cite them. Printed by",
        "`python tests/wardwright/requirements.py docs/requirements.md`; a test keeps it in step and fails when a number has neither.",
        "Case files are stories an operator can read: `wardwright check X.plan.yaml X.yaml` plays them.",
        "",
        "| Number | Requirement | Case files | Tests |",
        "|---|---|---|---|",
    ]
    for number, title in OWNED.items():
        lines.append(f"| {number} | {title} | {_links(citing(number, told))} | {_links(citing(number, tested))} |")
    lines += ["", "| Problem | Case files |", "|---|---|"]
    lines += [f"| {title} | {_links(telling(title, told))} |" for title in PROBLEMS]
    others = "; ".join(f"{number} {title}" for number, title in ELSEWHERE.items())
    lines += ["", f"Shown elsewhere: {others}.", ""]
    return "\n".join(lines)


def _links(paths: list[Path]) -> str:
    return ", ".join(f"[{_short(path)}](../{path.relative_to(PROJECT)})" for path in paths)


def _short(path: Path) -> str:
    inner = path.relative_to(PROJECT)
    if inner.parts[0] == "src":
        return inner.parent.name
    if path.suffix == ".py":
        return str(inner.relative_to("tests/wardwright").with_name(path.stem.removeprefix("test_")))
    return str(inner.relative_to("tests/cases").with_suffix("")).removesuffix(".plan")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
