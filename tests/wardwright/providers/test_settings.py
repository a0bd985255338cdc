"""The section `providers`: every mistake is told with its place, and no secret is ever repeated."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wardwright.config import Problems, parse_yaml
from wardwright.errors import Problem
from wardwright.providers.script import Line, Said, ScriptedCall
from wardwright.providers.settings import ID_RULES, IdRule, ProviderConfig, Secret, compile_providers
from wardwright.providers.url import parse_url


def compiled(text: str) -> tuple[Mapping[str, ProviderConfig], list[str]]:
    problems = Problems("f.yaml")
    found = compile_providers(parse_yaml(text, problems), problems)
    return found, [f"{one.severity} {one.path}: {one.message}" for one in problems.found]


def problems_of(text: str) -> list[str]:
    return compiled(text)[1]


def test_the_scripted_provider_is_always_there() -> None:
    """Without any section one can be served."""
    problems = Problems("f.yaml")
    assert compile_providers(None, problems) == {"scripted": ProviderConfig("scripted", "scripted")}
    assert problems.found == []


def test_everything_that_can_be_said_of_a_provider() -> None:
    """Each key of the section reaches the config."""
    text = """
one:
  kind: openai
  base_url: https://llm.example.test/api/v1/
  api_key_env: ONE_KEY
  wires: [responses, chat_completions]
  headers: {x-team: blue, x-api-token: {file: /run/token}}
  timeout: 2m
  connect_timeout: 250ms
  retries: 0
  breaker: {failures: 7, open: 1h}
  max_connections: 9
  ids: {pattern: "[a-z0-9]+", length: 12}
"""
    found, problems = compiled(text)
    assert problems == []
    assert found["one"] == ProviderConfig(
        "one",
        "openai",
        parse_url("https://llm.example.test/api/v1"),
        Secret(Problem("f.yaml", 5, 3, "one.api_key_env", ""), env="ONE_KEY"),
        ("responses", "chat_completions"),
        (
            ("x-team", "blue"),
            ("x-api-token", Secret(Problem("f.yaml", 7, 41, "one.headers.x-api-token.file", ""), file="/run/token")),
        ),
        120_000,
        250,
        0,
        7,
        3_600_000,
        9,
        IdRule("[a-z0-9]+", 12),
    )


def test_little_has_to_be_said_of_a_provider() -> None:
    """The usual addresses, wires and limits are known."""
    found, problems = compiled("o: {kind: openai, api_key_env: A}\na: {kind: anthropic, api_key_env: B}\n")
    assert problems == []
    assert str(found["o"].url) == "https://api.openai.com/v1"
    assert found["o"].wires == ("chat_completions", "responses")
    assert str(found["a"].url) == "https://api.anthropic.com"
    assert (found["a"].wires, found["a"].ids) == (("anthropic",), ID_RULES["anthropic"])
    assert (found["o"].timeout_ms, found["o"].connect_timeout_ms, found["o"].retries) == (60_000, 5_000, 2)


def test_a_copy_of_openais_api_speaks_chat_completions() -> None:
    """Responses is used elsewhere only when the operator says that it is there."""
    found, _ = compiled("o: {kind: openai, base_url: 'http://127.0.0.1:8000/v1'}\n")
    assert found["o"].wires == ("chat_completions",)


def test_a_list_is_read_like_a_mapping() -> None:
    """`name` or `id` of an entry is what the key of a mapping is."""
    found, problems = compiled("- {name: a, kind: scripted}\n- {id: b, kind: scripted}\n")
    assert problems == []
    assert set(found) == {"scripted", "a", "b"}


def test_a_script_is_read() -> None:
    """What a scripted provider says when."""
    text = """
s:
  kind: scripted
  script:
    - {when: {contains: weather, turn: 2}, reply: {text: sunny, tool_calls: [{name: a, arguments: {x: 1}, id: c}]}}
    - {when: {tool_result: true}, reply: {tool_calls: [{name: b}, {name: c, arguments: "not json"}]}}
    - {when: {tool_result: "42"}, reply: {status: 503, message: busy}}
    - {reply: {status: 429}}
    - {reply: {text: ""}}
"""
    found, problems = compiled(text)
    assert problems == []
    assert found["s"].script == (
        Line(Said("sunny", (ScriptedCall("a", '{"x":1}', "c"),)), "weather", None, 2),
        Line(Said("", (ScriptedCall("b", "{}"), ScriptedCall("c", "not json"))), "", ""),
        Line(Said("busy", (), 503), "", "42"),
        Line(Said("scripted error 429", (), 429)),
        Line(Said()),
    )


@pytest.mark.parametrize(
    "text",
    [
        "p: {kind: openai, api_key: sk-oops}",
        "p: {kind: openai, Api-Key: sk-oops}",
        "p: {kind: openai, token: sk-oops}",
        "p: {kind: openai, password: sk-oops}",
        "p: {kind: openai, api_key_env: sk-oops}",
        "p: {kind: openai, api_key_env: A, headers: {authorization: Bearer sk-oops}}",
        "p: {kind: openai, api_key_env: A, headers: {X-Secret: sk-oops}}",
        "p: {kind: openai, api_key_env: A, headers: {X-Key: {env: sk-oops}}}",
        "p: {kind: openai, api_key_env: A, base_url: 'https://me:sk-oops@x/'}",
        "p: {kind: openai, api_key_env: A, base_url: 'https://x/?key=sk-oops'}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(text: str) -> None:
    """Whatever it is called, a literal secret is an error that does not spread it."""
    found, problems = compiled(f"{text}\n")
    assert any(one.startswith("error ") for one in problems)
    assert "oops" not in "".join(problems)
    assert "oops" not in repr(found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "p: {kind: openai, api_key: x, api_key_env: A}",
            "error p.api_key: a secret does not belong in this file; name the environment variable (api_key_env) or the"
            " file (api_key_file) that holds it",
        ),
        (
            "p: {kind: openai, api_key_env: sk-1}",
            "error p.api_key_env: this is no name of an environment variable; the secret itself does not belong in this"
            " file",
        ),
        (
            "p: {kind: openai, api_key_env: A, api_key_file: b}",
            "error p.api_key_file: the key is given twice: api_key_env and api_key_file",
        ),
        (
            "p: {kind: opnai}",
            "error p.kind: 'opnai' is not one of openai, anthropic, scripted (did you mean 'openai'?)",
        ),
        ("p: {base_url: 'https://x'}", "error p: missing key 'kind'"),
        (
            "p: {kind: openai, api_key_env: A, bas_url: x}",
            "error p.bas_url: unknown key 'bas_url' (did you mean 'base_url'?)",
        ),
        (
            "p: {kind: openai, api_key_env: A, base_url: x}",
            "error p.base_url: an address starts with http:// or https://",
        ),
        (
            "p: {kind: openai, api_key_env: A, wires: [chat]}",
            "error p.wires[0]: 'chat' is not one of chat_completions, responses, anthropic",
        ),
        ("p: {kind: openai, api_key_env: A, wires: []}", "error p.wires: must not be an empty list"),
        ("p: {kind: openai, api_key_env: A, retries: -1}", "error p.retries: must be at least 0, got -1"),
        ("p: {kind: openai, api_key_env: A, max_connections: 0}", "error p.max_connections: must be at least 1, got 0"),
        (
            "p: {kind: openai, api_key_env: A, breaker: {failures: 0}}",
            "error p.breaker.failures: must be at least 1, got 0",
        ),
        (
            "p: {kind: openai, api_key_env: A, timeout: soon}",
            "error p.timeout: expected a duration such as 30d, 12h, 15m, 10s or 250ms",
        ),
        (
            "p: {kind: openai, api_key_env: A, headers: {x-token: abc}}",
            "error p.headers.x-token: the value of 'x-token' is a secret: say {env: NAME} or {file: PATH}",
        ),
        (
            "p: {kind: openai, api_key_env: A, headers: {x-token: {env: A, file: b}}}",
            "error p.headers.x-token: needs one of env and file",
        ),
        (
            'p: {kind: openai, api_key_env: A, headers: {x: "a\\r\\nb"}}',
            "error p.headers.x: the value of the header 'x' holds what cannot be sent",
        ),
        (
            "p: {kind: openai, api_key_env: A, headers: {Host: x}}",
            "error p.headers.Host: the header 'Host' is set by the client itself",
        ),
        (
            "p: {kind: openai, api_key_env: A, headers: {Accept: x}}",
            "error p.headers.Accept: the header 'Accept' is set by the gateway itself",
        ),
        ("p: {kind: openai, api_key_env: A, headers: [x]}", "error p.headers: expected a mapping, got a list"),
        (
            "p: {kind: openai, api_key_env: A, ids: {pattern: '('}}",
            "error p.ids.pattern: bad regular expression '(': missing ): (",
        ),
        (
            "p: {kind: openai, api_key_env: A, ids: {pattern: 'x+', length: 3}}",
            "error p.ids: no id of up to 3 letters and digits fits 'x+'",
        ),
        ("p: {kind: scripted, base_url: 'https://x'}", "error p.base_url: a scripted provider has no 'base_url'"),
        (
            "p: {kind: openai, api_key_env: A, script: []}",
            "error p.script: only a scripted provider has a script; this one is of kind openai",
        ),
        (
            "scripted: {kind: openai, api_key_env: A}",
            "error scripted: 'scripted' is the provider that is built in; give this one another name",
        ),
        ("- {kind: scripted}", "error [0]: needs one 'name'"),
        (
            "- {name: a, kind: scripted}\n- {name: a, kind: scripted}",
            "error [1].name: provider 'a' is already used at line 1",
        ),
        (
            "' a': {kind: scripted}",
            "error  a: ' a' cannot be a name: it has spaces around it, or what cannot be printed",
        ),
        ("p: text", "error p: expected a mapping, got text 'text'"),
        ("text", "error $: expected a list, got text 'text'"),
        ("s: {kind: scripted, script: [{when: {turn: 1}}]}", "error s.script[0]: missing key 'reply'"),
        (
            "s: {kind: scripted, script: [{reply: {}}]}",
            "error s.script[0].reply: must not be empty: text, tool_calls, or status and message",
        ),
        (
            "s: {kind: scripted, script: [{reply: {text: a, status: 500}}]}",
            "error s.script[0].reply: a reply is an error (status, message) or an answer (text, tool_calls), not both",
        ),
        (
            "s: {kind: scripted, script: [{reply: {status: 600}}]}",
            "error s.script[0].reply.status: the status of an error is 400 to 599, got 600",
        ),
        (
            "s: {kind: scripted, script: [{when: {tool_result: 3}, reply: {text: a}}]}",
            "error s.script[0].when.tool_result: expected true, or text that the result contains, got number 3",
        ),
        (
            "s: {kind: scripted, script: [{reply: {tool_calls: [{name: a, arguments: [1]}]}}]}",
            "error s.script[0].reply.tool_calls[0].arguments: expected a mapping, or text as the model writes it, got a"
            " list",
        ),
        (
            "p: {kind: openai}",
            "warning p: neither api_key_env nor api_key_file: requests go out without a key",
        ),
        (
            "p: {kind: openai, api_key_env: A, base_url: 'http://llm.example.test/v1'}",
            "warning p.base_url: http:// sends the key over the network for anybody to read",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, wanted: str) -> None:
    """Each mistake has its own sentence, and is the only one."""
    assert problems_of(f"{text}\n") == [wanted]


def test_a_server_on_this_machine_needs_neither_key_nor_encryption() -> None:
    """Local models are no mistake."""
    assert problems_of("p: {kind: openai, base_url: 'http://localhost:11434/v1'}\n") == []


def test_all_mistakes_are_told_at_once() -> None:
    """Reading goes on behind a mistake."""
    text = "a: {kind: x}\nb: {kind: openai, api_key: y, retries: z}\nc: {kind: scripted, script: 1}\n"
    assert len(problems_of(text)) == 4
