"""What an alert says when it leaves the gateway: enough to act on, and nothing that a receipt may not show."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from wardwright.alerts import Alerts, FileSink

from . import test_mcp
from .gateway_fixture import PATH, Running, asked, running, said

CONFIG = """
model_id: m
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
targets: [{{model: first, provider: double, context_window: 100000}}]
catalog: [{{match: send_it, namespace: mail, name: send}}]
alerts: {{sinks: [{{kind: file, path: "{alerts}"}}]}}
governance:
{rules}
"""
SECRET = "hunter2-is-secret"


def told(tmp_path: Path, rules: str) -> list[dict[str, Any]]:
    """The alerts of one exchange in which `send_it` is called."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said("anthropic", "", ("c1", "send_it", {"x": SECRET})), said("anthropic", "Well.")]
        answer = await gateway.post(PATH["anthropic"], asked("anthropic", SECRET, ["send_it"]), session="s1")
        receipts.append(answer.receipt_id)

    receipts: list[str] = []
    alerts = tmp_path / "alerts.ndjson"
    running(tmp_path, CONFIG.format(alerts=alerts, rules=rules), story)
    text = alerts.read_text()
    assert SECRET not in text
    found = [orjson.loads(line) for line in text.splitlines()]
    assert {one.pop("receipt_id") for one in found} == set(receipts)
    assert all(one.pop("at_ms") for one in found)
    return found


def test_an_alert_says_where_to_which_rule_which_tool_and_what_became_of_it(tmp_path: Path) -> None:
    """One per event that matched, with the names of the tool, and no argument."""
    sent = {
        "channel": "security",
        "rule_id": "tell",
        "model": "m",
        "tenant": "",
        "session_id": "s1",
    }
    tool = {"namespace": "mail", "name": "send", "raw_name": "send_it"}
    rules = (
        "  - {id: tell, kind: alert, channel: security, tool: {namespace: mail}}\n"
        "  - {id: stop, kind: tool_selector, action: deny_call, tool: {namespace: mail, source: assistant_tool_call}}\n"
    )
    assert told(tmp_path, rules) == [
        {
            **sent,
            "gate": "reply",
            "decision": "deny_call",
            "tools": [{**tool, "source": "assistant_tool_call"}],
            "message": "Rule 'tell' matched a call of mail.send.",
        },
    ]


def test_an_alert_of_a_rule_with_a_message_says_that(tmp_path: Path) -> None:
    """The author's words come before ours."""
    rules = "  - {id: tell, kind: alert, tool: {name: send, source: assistant_tool_call}, message: Mail goes out.}\n"
    (alert,) = told(tmp_path, rules)
    assert (alert["message"], alert["channel"], alert["decision"]) == ("Mail goes out.", "", "allow")


def test_an_alert_on_a_text_names_no_tool_and_repeats_no_text(tmp_path: Path) -> None:
    """What matched is not sent; the receipt says which."""
    rules = f"  - {{id: tell, kind: alert, match: {SECRET}, roles: [user]}}\n"
    (alert,) = told(tmp_path, rules)
    assert (alert["message"], alert["tools"]) == ("Rule 'tell' matched a request.", [])


def test_a_call_through_the_proxy_alerts_in_the_same_words(tmp_path: Path) -> None:
    """The MCP proxy sends what the gateway sends."""
    rule = "  - {id: tell, kind: alert, channel: ops, tool: {namespace: mcp.files, source: assistant_tool_call}}\n"
    proxy = test_mcp.Running(tmp_path, test_mcp.PLAN.replace("  governance:\n", "  governance:\n" + rule))
    proxy.alerts = Alerts([FileSink(str(tmp_path / "alerts.ndjson"))])
    proxy.tool("delete", path=SECRET)

    async def deliver() -> None:
        delivering = asyncio.ensure_future(proxy.alerts.run())
        await asyncio.sleep(0)
        await proxy.alerts.close()
        await delivering

    asyncio.run(deliver())
    proxy.store.close()
    text = (tmp_path / "alerts.ndjson").read_text()
    (alert,) = [orjson.loads(line) for line in text.splitlines()]
    assert SECRET not in text
    assert (alert["channel"], alert["decision"]) == ("ops", "deny_call")
    assert alert["message"] == "Rule 'tell' matched a call of mcp.files.delete."
    assert alert["tools"][0]["raw_name"] == "mcp__files__delete"
