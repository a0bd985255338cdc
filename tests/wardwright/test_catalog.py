"""Raw names become identities the operator chose; unreachable entries are refused."""

from __future__ import annotations

import pytest

from wardwright.catalog import Catalog, compile_catalog, compile_glob, default_entries, result_status
from wardwright.config import Problems, parse_yaml


def build(text: str) -> tuple[Catalog, list[str]]:
    problems = Problems("c")
    entries = compile_catalog(parse_yaml(text, problems), problems)
    return Catalog([entries, default_entries()]), [f"{one.line}: {one.message}" for one in problems.found]


@pytest.mark.parametrize(
    ("raw", "namespace", "name", "risk", "confidence"),
    [
        ("mcp__github__create_pull_request", "mcp.github", "create_pull_request", "write", "inferred"),
        ("mcp__GitHub__Create_Issue", "mcp.GitHub", "Create_Issue", "write", "inferred"),
        ("github.create_pull_request", "github", "create_pull_request", "write", "inferred"),
        ("mcp.github.merge_pull_request", "mcp.github", "merge_pull_request", "irreversible", "inferred"),
        ("acme/ping", "acme", "ping", "unknown", "inferred"),
        ("Bash", "shell", "exec", "irreversible", "exact"),
        ("local_shell", "shell", "exec", "irreversible", "exact"),
        ("functions.bash", "shell", "exec", "irreversible", "inferred"),
        ("default_api.Read_File", "filesystem", "read", "read_only", "inferred"),
        ("functions.default_api.mcp__github__get_me", "mcp.github", "get_me", "read_only", "inferred"),
        ("functions.Weather", "unknown", "Weather", "unknown", "ambiguous"),
        ("functions.provider.web_search.run", "unknown", "provider.web_search.run", "unknown", "ambiguous"),
        ("browser_open", "browser", "open", "read_only", "inferred"),
        ("get_weather", "unknown", "get_weather", "unknown", "ambiguous"),
        ("provider.web_search.run", "unknown", "provider.web_search.run", "unknown", "ambiguous"),
    ],
)
def test_the_default_catalog_names_tools(raw: str, namespace: str, name: str, risk: str, confidence: str) -> None:
    """G6: identity, risk and how sure we are, for the common naming schemes."""
    found = Catalog([default_entries()]).resolve(raw)
    assert (found.namespace, found.name, found.risk_class, found.confidence) == (namespace, name, risk, confidence)


@pytest.mark.parametrize(
    "raw",
    [
        "bash ",
        " bash",
        "bash\n",
        "bash\u200b",
        "ba\u00adsh",
        "\ufeffbash",
        "b\x00ash",
        "ｂａｓｈ",
        "BASH\u3000",
        "ba\ufe0fsh",
    ],
)
def test_a_name_that_only_looks_different_is_the_same_tool(raw: str) -> None:
    """G6: white space at the ends, control and ignorable characters make no other tool."""
    found = Catalog([default_entries()]).resolve(raw)
    assert (found.namespace, found.name, found.risk_class) == ("shell", "exec", "irreversible")


def test_what_cannot_be_seen_is_no_part_of_a_name() -> None:
    """G6: an unnamed tool goes by what can be seen of its name, in its own case; one of nothing visible keeps it all."""
    catalog = Catalog([default_entries()])
    assert [catalog.resolve(raw).name for raw in ("Wea\u200bther ", "acme.Pi\u00adng", "\u200b")] == [
        "Weather",
        "Ping",
        "\u200b",
    ]


def test_white_space_inside_a_pattern_counts() -> None:
    """G6: only the ends of a name are trimmed."""
    catalog, problems = build("- {match: 'run {name} ', namespace: run}\n")
    assert (problems, catalog.resolve("Run Me").name, catalog.resolve("runme").namespace) == ([], "Me", "unknown")


def test_a_wrapped_name_is_looked_up_in_the_whole_catalog() -> None:
    """G6: the tool inside a wrapper is the operator's own, whatever wraps it; wrappers without end name nothing."""
    catalog, problems = build(
        "- {match: 'tool:{x}', unwrap: '{x}'}\n- {match: pay, namespace: bank, name: pay, risk_class: irreversible}\n"
    )
    assert problems == []
    assert [(found.namespace, found.name) for found in map(catalog.resolve, ("tool:pay", "functions.tool:PAY"))] == [
        ("bank", "pay"),
        ("bank", "pay"),
    ]
    assert catalog.resolve("functions." * 9 + "pay").namespace == "unknown"


def test_the_gate_knows_where_a_proxied_tool_runs() -> None:
    """G5: the default catalog does not say where MCP tools run, so the receipt says what was seen."""
    assert Catalog([default_entries()]).resolve("mcp__github__get_me").execution_location == ""


def test_own_entries_come_before_the_default_ones() -> None:
    """G60: a model's catalog wins over what ships."""
    catalog, _ = build("- {match: bash, namespace: sandbox, name: run, risk_class: read_only}\n")
    assert catalog.resolve("bash").namespace == "sandbox"


def test_the_first_identity_entry_wins_and_attributes_fill_in() -> None:
    """G6: identity entries first, then attribute entries, the first that says something."""
    catalog, problems = build(
        "- {match: 'a_{name}', namespace: a, effects: pay}\n"
        "- {namespace: a, name: 'x*', risk_class: write}\n"
        "- {namespace: a, risk_class: read_only, results: trusted}\n"
    )
    found = catalog.resolve("a_x1")
    assert (problems, found.risk_class, found.effects, found.trust) == ([], "write", ("pay",), "trusted")


def test_trust_can_be_set_per_field() -> None:
    """G6: a sender field can be trusted where the body is not."""
    catalog, _ = build(
        "- {match: mail, namespace: mail, results: {trust: untrusted, fields: {/from: trusted, /body: untrusted}}}\n"
    )
    found = catalog.resolve("mail")
    assert (found.trust, found.trusted_fields) == ("untrusted", ("/from",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- {match: 'a*', namespace: a}\n- {match: ab, namespace: b}\n",
            "2: unreachable: 'a*' at line 1 matches first",
        ),
        (
            "- {match: '{x}_y', namespace: a}\n- {match: 'b*_y', namespace: b}\n",
            "2: unreachable: '{x}_y' at line 1 matches first",
        ),
        (
            "- {namespace: a, risk_class: write}\n- {namespace: a, name: x, risk_class: read_only}\n",
            "2: unreachable: the entry at line 1 says the same first",
        ),
        ("- {match: x}\n", "1: needs 'namespace', or '{namespace}' in match"),
        ("- {match: 'x_{a}', namespace: '{b}'}\n", "1: '{b}' does not occur in match 'x_{a}'"),
        ("- {match: '{a}{a}', namespace: b}\n", "1: a placeholder occurs twice"),
        (
            "- {namespace: a}\n",
            "1: says nothing: give risk_class, effects, results, execution_location, result_status, arguments, fields or redact",
        ),
        ("- {namespace: '{a}', risk_class: write}\n", "1: placeholders need a 'match'"),
        ("- {}\n", "1: an empty entry names nothing"),
        (
            "- {match: x, namespace: y, risk_class: high}\n",
            "1: 'high' is not one of read_only, write, irreversible, external_side_effect, unknown",
        ),
        ("- {unwrap: x, namespace: y}\n", "1: needs a 'match' with a placeholder for the name inside"),
        ("- {match: 'a.{x}', unwrap: 'x'}\n", "1: names no placeholder of match 'a.{x}'"),
        ("- {match: 'a.{x}', unwrap: '{y}'}\n", "1: '{y}' does not occur in match 'a.{x}'"),
        (
            "- {match: 'a.{x}', unwrap: '{x}', risk_class: write}\n",
            "1: the tool inside has its own entry: 'risk_class' cannot stand beside 'unwrap'",
        ),
        (
            "- {match: x, namespace: y, results: {trust: trusted, fields: {/a~2b: trusted}}}\n",
            "1: '/a~2b' is not a JSON pointer",
        ),
        (
            "- {match: x, namespace: y, result_status: [{status: error}]}\n",
            "1: needs 'pattern', or 'pointer' and 'equals'",
        ),
        (
            "- {match: x, namespace: y, results: {trust: trusted, fields: {from: trusted}}}\n",
            "1: 'from' is not a JSON pointer",
        ),
    ],
)
def test_a_doubtful_entry_is_refused(text: str, message: str) -> None:
    """G6, G10: what can never apply, or says nothing, is a problem."""
    assert build(text)[1] == [message]


def test_extractors_read_text_and_fields() -> None:
    """G5: the first extractor that holds decides; none leaves the status unknown."""
    catalog, _ = build(
        "- match: job\n  namespace: j\n  result_status:\n"
        "    - {pointer: /ok, equals: false, status: rejected}\n    - {pattern: '^E', status: error, invalid_arguments: true}\n"
    )
    job = catalog.resolve("job")
    assert [result_status(job, text) for text in ('{"ok": false}', '{"ok": 0}', "E1", "fine")] == [
        ("rejected", False),
        ("unknown", False),
        ("error", True),
        ("unknown", False),
    ]


@pytest.mark.parametrize(
    ("glob", "text", "fits"),
    [
        ("abc", "abc", True), ("abc", "abcd", False), ("a*", "a", True), ("*c", "abc", True), ("*b*", "abc", True),
        ("a*c", "abbc", True), ("a?c", "abc", True), ("a?c", "ac", False), ("*", "", True), ("ＡB*", "abx", True), ("a.c", "abc", False),
    ],
)  # fmt: skip
def test_globs(glob: str, text: str, fits: bool) -> None:
    """G13: star and question mark, folded, over the whole name."""
    assert compile_glob(glob)(text) is fits


def test_what_is_remembered_about_names_is_bounded() -> None:
    """Callers choose names; ten thousand of them leave no more than the memo's limit."""
    catalog = Catalog([default_entries()])
    for number in range(10_000):
        catalog.resolve(f"tool{number}")
    catalog.resolve("x" * 100_000)
    assert len(catalog._memo) <= 4096
    assert max(len(name) for name in catalog._memo) < 300
