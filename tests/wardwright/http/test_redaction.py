"""What the catalog redacts (G8): neither an approver nor a captured receipt shows it, and rules judge it all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.catalog import redacted
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import compile_plan
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Running, asked, called, goes_on, running, said
from .test_exchange import decide

WIRE: WireName = "anthropic"
CONFIG = """
model_id: m
capture: full
{approval}
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
targets: [{{model: first, provider: double, context_window: 100000}}]
catalog:
  - {{match: sign_in, namespace: accounts, name: sign_in, redact: [password]}}
  - {{namespace: accounts, redact: [/card/number]}}
alerts: {{sinks: [{{kind: file, path: "{alerts}"}}]}}
governance:
  - {{id: tell, kind: tool_selector, action: alert_async, tool: {{namespace: accounts}}}}
  - {{id: ask-first, kind: tool_selector, action: require_approval, tool: {{namespace: accounts, source: assistant_tool_call}}}}
  - {{id: fits, kind: argument_schema, action: require_approval, tool: {{namespace: accounts}}, schema: {{properties: {{password: {{const: x}}}}}}}}
"""
SECRET = "hunter2-is-secret"
ARGUMENTS = {"user": "ann", "password": SECRET, "card": {"number": SECRET, "kind": "credit"}}


@pytest.mark.parametrize("approval", ["", "approval: tool_error"], ids=["held", "tool-error"])
def test_a_redacted_argument_is_shown_nowhere(tmp_path: Path, approval: str) -> None:
    """G8: not to the approver, not on a receipt with full capture, not in an alert, not in a log; the caller gets it whole."""

    async def story(gateway: Running) -> None:
        body = asked(WIRE, "sign in", ["sign_in"])
        gateway.provider.replies = [said(WIRE, "", ("c1", "sign_in", ARGUMENTS)), said(WIRE, "It waits.")]
        await gateway.post(PATH[WIRE], body, session="s1")
        listed = await gateway.admin("GET", "/v1/wardwright/approvals")
        assert SECRET not in listed.body.decode()
        (waiting,) = listed.json["approvals"]
        shown = {"user": "ann", "password": "[redacted]", "card": {"number": "[redacted]", "kind": "credit"}}
        assert orjson.loads(waiting["calls"][0]["arguments"]) == shown
        await decide(gateway, waiting["handle"], "approve")
        gateway.provider.replies = [said(WIRE, "", ("c2", "sign_in", ARGUMENTS)), said(WIRE, "In.")]
        passed = await gateway.post(PATH[WIRE], body, session="s1")
        assert passed.json["content"][0]["input"] == ARGUMENTS
        (call,) = called(WIRE, passed.json)
        after = goes_on(WIRE, body, passed.json, {call: orjson.dumps({"ok": 1, "password": SECRET}).decode()})
        gateway.provider.replies = [said(WIRE, "In.")]
        assert (await gateway.post(PATH[WIRE], after, session="s1")).status == 200
        kept = orjson.dumps(gateway.receipts()).decode()
        assert SECRET not in kept
        assert "redacted_arguments" in kept and "redacted_content" in kept and '\\"user\\":\\"ann\\"' in kept

    alerts = tmp_path / "alerts.ndjson"
    running(tmp_path, CONFIG.format(approval=approval, alerts=alerts), story)
    assert alerts.read_text() and SECRET not in alerts.read_text()


CASES: list[tuple[list[str], Any, Any]] = [
    (
        ["password"],
        {"password": 1, "a": [{"PassWord": [2]}]},
        {"password": "[redacted]", "a": [{"PassWord": "[redacted]"}]},
    ),
    (["/a/b"], {"a": {"b": 1, "c": 2}, "b": 3}, {"a": {"b": "[redacted]", "c": 2}, "b": 3}),
    (["/a/*/b"], {"a": [{"b": 1}, {"b": 2, "c": 3}]}, {"a": [{"b": "[redacted]"}, {"b": "[redacted]", "c": 3}]}),
    (["password"], {"body": '{"password": "x", "y": 1}'}, {"body": '{"password":"[redacted]","y":1}'}),
    (["password"], {"other": 1}, {"other": 1}),
]


@pytest.mark.parametrize(("paths", "given", "shown"), CASES, ids=["key", "pointer", "any", "inside-a-text", "nothing"])
def test_what_a_path_names_is_taken_out(paths: list[str], given: Any, shown: Any) -> None:
    """G8: a key at any depth and in any case, a pointer at its place, and documents that are written into a text."""
    assert orjson.loads(redacted(paths, orjson.dumps(given).decode())) == shown


@pytest.mark.parametrize(
    "text",
    ["password is hunter2", '"hunter2"', '{"password": "hunter2"', '{"x": {"password": "hunter2"}, "x": 1}', '{"a": 1e999, "password": "hunter2"}', "[" * 2000],
    ids=["words", "a-text", "broken", "twice", "infinite", "deep"],
)  # fmt: skip
def test_what_cannot_be_read_is_not_shown(text: str) -> None:
    """G8: doubt hides: no form of writing carries a redacted value past."""
    shown = redacted(["password"], text)
    assert "hunter2" not in shown and shown != text


def test_a_path_that_is_none_is_refused() -> None:
    """G10: a pointer that cannot be one is told at its place."""
    with pytest.raises(ConfigError, match="not a JSON pointer"):
        compile_plan(parse_config('model_id: m\ncatalog: [{namespace: x, redact: ["/a~2"]}]\n'))
