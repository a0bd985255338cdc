"""A catalog drafted from tool schemas: it compiles, marks its guesses, and leaves open what nothing suggests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wardwright.cli import main
from wardwright.config import load_config, parse_config
from wardwright.policy.compile import compile_plan
from wardwright.policy.draft import BadTools, draft

TOOLS = [
    {
        "name": "send_money",
        "description": "Sends a transaction\nto the recipient.",
        "input_schema": {
            "properties": {
                "recipient": {"type": "string", "description": "IBAN of the recipient"},
                "amount": {"type": "number"},
                "subject": {"type": "string"},
                "date": {"type": "string"},
                "frob": {"type": "string"},
            }
        },
    },
    {"type": "function", "function": {"name": "get_unread_emails", "parameters": {"properties": {}}}},
    {"name": "get_webpage", "inputSchema": {"properties": {"url": {"type": "string"}}}},
    {"name": "updatePassword", "input_schema": {"properties": {"password": {"type": "string"}}}},
    {"name": "frobnicate", "input_schema": {"properties": {"quux": {"type": "string"}}}},
    {
        "name": "list_guests",
        "outputSchema": {"items": {"properties": {"id": {}, "passport": {}, "remark": {}}}},
    },
]


def test_the_draft_compiles_and_says_what_it_guessed() -> None:
    """P2, P10: sinks, effects and classes as names and descriptions suggest, each marked."""
    text = draft(json.dumps(TOOLS))
    part = next(iter(compile_plan(parse_config(text)).models.values()))
    money = part.catalog.resolve("send_money")
    assert (money.effects, money.risk_class) == (("pay",), "irreversible")
    assert dict(money.sinks) == {"recipient": "payee", "amount": "any", "subject": "text", "date": "date"}
    mails = part.catalog.resolve("get_unread_emails")
    assert {label.field: label.field_class for label in mails.fields}["body"] == "text"
    assert mails.names == ("subject",)
    assert dict(part.catalog.resolve("get_webpage").sinks) == {"url": "url_fetch"}
    assert part.catalog.resolve("updatePassword").effects == ("change_password",)
    guests = part.catalog.resolve("list_guests")
    assert {label.field: label.field_class for label in guests.fields} == {
        "id": "system",
        "passport": "confidential",
        "remark": "text",
    }
    labels = [line for line in text.splitlines() if line.startswith("      ") and "?" not in line and ": " in line]
    assert all("# guessed" in line for line in labels if "governance" not in line)


def test_what_nothing_suggests_is_left_open() -> None:
    """V5: an argument and a tool that no name explains stay unlabelled, and `check` says so."""
    text = draft(json.dumps({"tools": TOOLS}))
    assert "# frob: ?" in text
    warnings = [one.message for one in compile_plan(parse_config(text)).warnings]
    assert "'frobnicate' has no 'effects': a rule on intent refuses it" in warnings
    assert "'frobnicate' has no 'arguments': they take only what the user says" in warnings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON: "),
        ("{}", "expected a list of tools, or an object with 'tools'"),
        ("[]", "there is no tool in it"),
        ("[{}]", "a tool has no name"),
    ],
)
def test_what_is_no_list_of_tools_is_refused(text: str, message: str) -> None:
    """The message says what was expected."""
    with pytest.raises(BadTools, match="^" + message.replace("'", ".")):
        draft(text)


def test_init_writes_the_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G61: `init --catalog-from` writes a file that `check` takes."""
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    target = tmp_path / "plan.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["init", str(target), "--catalog-from", str(tmp_path / "tools.json")])
    assert ended.value.code == 0
    assert compile_plan(load_config(target)).models
    with pytest.raises(SystemExit) as refused:
        main(["init", str(tmp_path / "b.yaml"), "--catalog-from", str(target)])
    assert refused.value.code != 0
    assert "plan.yaml: no JSON" in capsys.readouterr().err
