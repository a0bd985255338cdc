"""A catalog drafted from tool schemas: it compiles, marks its guesses, and leaves open what nothing suggests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wardwright.catalog import Catalog
from wardwright.cli import main
from wardwright.config import load_config, parse_config
from wardwright.policy.compile import compile_plan
from wardwright.policy.draft import BadTools, draft

from .provenance_world import Talk

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


def drafted(*tools: dict[str, object]) -> Catalog:
    return next(iter(compile_plan(parse_config(draft(json.dumps(tools)))).models.values())).catalog


def tool(name: str, description: str = "", output: object = None, **arguments: object) -> dict[str, object]:
    schema = {"properties": {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in arguments.items()}}
    found: dict[str, object] = {"name": name, "description": description, "inputSchema": schema}
    return found if output is None else {**found, "outputSchema": output}


@pytest.mark.parametrize(
    ("name", "description", "effect"),
    [
        ("cancel_transaction", "", "cancel"),
        ("scheduleTransfer", "", "schedule_payment"),
        ("slack.postMessage", "", "post"),
        ("add_user_to_channel", "", "invite"),
        ("create_public_link", "", "publish"),
        ("write_file", "", "write_file"),
        ("add_contact", "", "save_contact"),
        ("mark_as_read", "", "mark_read"),
        ("unlock_door", "", "control"),
        ("gmail-reply", "Replies to a message.", "send"),
        ("rota", "Sends the rota to everybody.", "send"),
        ("email_delete", "", "delete"),
        ("calendar_create_event", "", "schedule"),
    ],
)
def test_effects_by_verb_and_noun(name: str, description: str, effect: str) -> None:
    """P10: however the name is written; where it says too little, by the description."""
    assert drafted(tool(name, description)).resolve(name).effects == (effect,)


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("order_status", "Returns the status of an order."),
        ("weather", "Get the weather."),
        ("list_orders", ""),
        ("whoami", ""),
    ],
)
def test_reading_tools_are_told_by_verb_or_description(name: str, description: str) -> None:
    """A noun that is a verb as well reads only if the description begins with a word for reading."""
    assert drafted(tool(name, description)).resolve(name).risk_class == "read_only"


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("order_pizza", "Order a pizza."),
        ("get_or_create_note", ""),
        ("check_out", ""),
        ("frob", ""),
        ("list_add_item", "Adds an item."),
        ("cleaner", "This tool is used to remove files."),
        ("resolve_issue", ""),
        ("collect_payment", ""),
        ("ping_user", ""),
        ("report", "What is sent to the authorities."),
    ],
)
def test_what_is_not_known_to_read_counts_as_writing(name: str, description: str) -> None:
    """V5: guesses lean towards less trust."""
    assert drafted(tool(name, description)).resolve(name).risk_class != "read_only"


def test_a_tool_without_an_effect_gets_one_of_its_own() -> None:
    """P12: the words of its name ask for it, in the lexicon of the rule."""
    text = draft(json.dumps([tool("calibrate_scale", "Adjusts the scale.", grams="number")]))
    talk = Talk(compile_plan(parse_config(text.replace("model_id: drafted", "model_id: assistant"))))
    assert not talk.user("Look at the scale").passes("calibrate_scale", {"grams": 5})
    assert talk.user("Adjust the scale to 5 grams").passes("calibrate_scale", {"grams": 5})


def test_sinks_by_name_type_and_use() -> None:
    """P6: ids are objects unless they say whom a call reaches; counts are no people; ends of accounts differ."""
    catalog = drafted(
        tool("delete_email", "", email_id="string"),
        tool(
            "send_message",
            "",
            user_id="string",
            text="string",
            link="string",
            when={"type": "string", "format": "date"},
        ),
        tool("transfer_money", "", from_account="string", to_account="string", amount="number"),
        tool("book_table", "", place_id="string", people="integer", kind={"type": "string", "enum": ["a"]}),
        tool("run_command", "", command="string"),
        tool("close_issue", "", number="integer"),
    )
    sinks = {
        name: dict(catalog.resolve(name).sinks)
        for name in ("delete_email", "send_message", "transfer_money", "book_table")
    }
    assert sinks == {
        "delete_email": {"email_id": "object"},
        "send_message": {"user_id": "address", "text": "text", "link": "url_post", "when": "date"},
        "transfer_money": {"from_account": "object", "to_account": "payee", "amount": "any"},
        "book_table": {"place_id": "object", "people": "any", "kind": "any"},
    }
    assert dict(catalog.resolve("run_command").sinks) == {}
    assert dict(catalog.resolve("close_issue").sinks) == {"number": "object"}


def test_schemas_of_results_are_followed() -> None:
    """P2: references, choices, lists of plain values and maps by name."""
    person = {"type": "object", "properties": {"name": {"type": "string"}, "email": {"type": "string"}}}
    catalog = drafted(
        tool(
            "get_members",
            "",
            {"$defs": {"P": person}, "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}},
        ),
        tool("get_channels", "", {"type": "array", "items": {"type": "string"}}),
        tool("get_hotel_rates", "", {"type": "object", "additionalProperties": {"type": "string"}}, city="string"),
        tool("reserve_hotel", "", hotel="string"),
        tool("get_iban", "", {"type": "string"}),
        tool("read_page", "", {"type": "string"}, url="string"),
    )
    classes = {
        name: {label.field: label.field_class for label in catalog.resolve(name).fields}
        for name in ("get_members", "get_channels", "get_hotel_rates", "get_iban", "read_page")
    }
    assert classes == {
        "get_members": {"name": "directory", "email": "directory"},
        "get_channels": {"[]": "system"},
        "get_hotel_rates": {"{}": "system", "*": "text"},
        "get_iban": {"": "self"},
        "read_page": {"": "text"},
    }


def test_hints_of_a_server_do_not_outweigh_a_verb() -> None:
    """A server that calls `delete_all` read-only is not believed."""
    lying = {**tool("delete_all"), "annotations": {"readOnlyHint": True}}
    sly = {**tool("post_message"), "annotations": {"readOnlyHint": True}}
    honest = {**tool("almanac"), "annotations": {"readOnlyHint": True}}
    catalog = drafted(lying, sly, honest)
    assert catalog.resolve("delete_all").risk_class == "irreversible"
    assert catalog.resolve("post_message").risk_class == "external_side_effect"
    assert catalog.resolve("almanac").risk_class == "read_only"
