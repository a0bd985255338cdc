"""A catalog drafted from tool schemas: what names, types and descriptions suggest, every guess marked as one.

Guesses lean towards less trust: what nothing suggests stays unlabelled, and `check` lists it. Nothing here is read by the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from wardwright.errors import WardwrightError

READING: Final = frozenset(
    [
        "get",
        "list",
        "read",
        "search",
        "find",
        "fetch",
        "browse",
        "view",
        "check",
        "show",
        "query",
        "lookup",
        "describe",
        "count",
        "see",
        "look",
        "retrieve",
        "calculate",
        "load",
        "scan",
    ]
)
EFFECTS: Final[Sequence[tuple[str, str]]] = (
    ("password", "change_password"),
    ("schedule.*(transaction|payment|transfer)|standing", "schedule_payment"),
    ("pay|money|transfer|transaction|donate|refund", "pay"),
    ("invite|add_(user|participant|member)|participants", "invite"),
    ("share|permission|grant", "share"),
    ("cancel", "cancel"),
    ("delete|remove|erase|trash|purge", "delete"),
    ("reserve|book", "book"),
    ("event|meeting|appointment|reschedule|calendar", "schedule"),
    ("email|mail|direct_message|reply|forward|sms|notify", "send"),
    ("post|publish|channel_message|upload|tweet|comment", "post"),
    ("send|message", "send"),
    ("buy|order|purchase", "buy"),
    ("user_info|profile|account|settings", "update_account"),
    ("(create|write|save|new).*(file|document|note)", "create_file"),
    ("(append|edit|update|rename|move).*(file|document|note)|append", "edit_file"),
    ("run|exec|shell|install|deploy", "run"),
)
"""Part of a tool's name → what it does. The first that fits."""

SINKS: Final[Sequence[tuple[str, str]]] = (
    ("password|passcode|secret|token|otp|^pin$", "secret"),
    ("iban|payee|beneficiary|account_number", "payee"),
    ("url|link|website|uri|webpage", "url"),
    (
        "^to$|^cc$|^bcc$|recipients?|email|participants?|attendees?|invitees?|^users?$|username|user_email|member|phone",
        "address",
    ),
    ("^(id|ids)$|_ids?$|^file$|^files$|channel|^event$|hotel|restaurant|company|attachment", "object"),
    ("path|file_?name|directory|folder", "path"),
    ("date|day|start|end|time|when|deadline", "date"),
    ("body|content|text|message|subject|title|description|comment|note|reason|summary", "text"),
    ("query|amount|limit|page|count|size|number|sort|order|language|currency|recurring|rating", "any"),
)
"""Part of an argument's name → its sink."""

FIELDS: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    (
        "email|mail|inbox",
        {
            "id": "system",
            "id_": "system",
            "email_id": "system",
            "sender": "{class: system, roles: [sender]}",
            "from": "{class: system, roles: [sender]}",
            "recipients": "{class: system, roles: [recipients]}",
            "cc": "{class: system, roles: [cc]}",
            "date": "system",
            "timestamp": "system",
            "subject": "label",
            "body": "text",
        },
    ),
    ("contact|member|users|people|directory", {"name": "directory", "email": "directory", "phone": "directory"}),
    (
        "event|calendar|meeting",
        {
            "id": "system",
            "id_": "system",
            "title": "label",
            "start_time": "system",
            "end_time": "system",
            "organizer": "{class: system, roles: [organizer]}",
            "participants": "{class: system, roles: [participants, attendees]}",
            "description": "text",
            "location": "text",
        },
    ),
    (
        "transaction|payment",
        {
            "id": "system",
            "sender": "{class: system, roles: [sender]}",
            "recipient": "{class: system, roles: [recipient]}",
            "amount": "system",
            "date": "system",
            "subject": "text",
        },
    ),
    ("payee|beneficiar", {"name": "payee", "iban": "payee", "account": "payee"}),
    ("iban|user_info|my_account|profile", {"iban": "self", "email": "self", "password": "confidential"}),
    (
        "file|document|drive|folder",
        {
            "id": "system",
            "id_": "system",
            "filename": "label",
            "name": "label",
            "owner": "system",
            "last_modified": "system",
            "content": "text",
        },
    ),
    ("message|channel|chat", {"sender": "system", "recipient": "system", "name": "label", "body": "text"}),
)
"""Part of a reading tool's name → what its results may hold."""

CONFIDENTIAL: Final[re.Pattern[str]] = re.compile(
    r"passport|ssn|social_security|credit_card|card_number|cvv|password|secret"
)
NAMES: Final = ("name", "title", "subject", "filename")
AUTHORS: Final = ("sender", "from", "author")
LOCATORS: Final[re.Pattern[str]] = re.compile(r"path|file|url|folder|channel|^id$|_id$|^user$|sender")

GUESS: Final = "# guessed"
_NOTHING: Final[Mapping[str, str]] = {}


class BadTools(WardwrightError, ValueError):
    """What was given is no list of tools."""


def read_tools(text: str) -> list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """(name, description, schema of the arguments, schema of the result) of every tool: a list as MCP, OpenAI or Anthropic write it."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadTools(f"no JSON: {error}") from None
    if isinstance(given, dict):
        given = cast("dict[str, Any]", given).get("tools")
    if not isinstance(given, list):
        raise BadTools("expected a list of tools, or an object with 'tools'")
    found: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = []
    for one in cast("list[Any]", given):
        tool = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        inner: Any = tool.get("function")
        tool = cast("dict[str, Any]", inner) if isinstance(inner, dict) else tool
        name: Any = tool.get("name")
        if not isinstance(name, str) or not name:
            raise BadTools("a tool has no name")
        schema: Any = tool.get("input_schema") or tool.get("inputSchema") or tool.get("parameters") or {}
        output: Any = tool.get("output_schema") or tool.get("outputSchema") or {}
        found.append((name, str(tool.get("description") or ""), _object(schema), _object(output)))
    if not found:
        raise BadTools("there is no tool in it")
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def draft(tools: str, source: str = "tools.json") -> str:
    """A plan with a catalog of these tools and a rule of each kind, as commented YAML."""
    lines = [
        f"# Drafted from {source}. Lines marked '{GUESS[2:]}' are guesses from names, types and descriptions: read every one of them.",
        "# What is not labelled is untrusted, and refused where it could do harm: `wardwright check` lists it.",
        "",
        "model_id: drafted",
        "",
        "catalog:",
    ]
    for name, description, schema, output in read_tools(tools):
        lines.extend(_tool(name, description, schema, output))
    lines += [
        "",
        "governance:",
        "  - id: values-come-from-the-owner",
        "    kind: argument_provenance",
        '    tool: {name: "*"}',
        "    # self: [me@example.com]              # the principal's own addresses and accounts",
        '    # protected_paths: ["/etc/*", "*/.ssh/*"]',
        "  - id: only-what-was-asked",
        "    kind: intent",
        "    tool: {risk_class: [write, irreversible, external_side_effect, unknown]}",
        "",
    ]
    return "\n".join(lines)


def _tool(name: str, description: str, schema: Mapping[str, Any], output: Mapping[str, Any]) -> Iterator[str]:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    parts = [part for part in re.split(r"[_.\s/:]+", plain) if part]
    reads = any(part in READING for part in parts[:2])
    effect = "" if reads else next((word for pattern, word in EFFECTS if re.search(pattern, plain)), "")
    yield f"  - match: {_quoted(name)}"
    if description:
        shown = "".join(one for one in " ".join(description.split())[:120] if one.isprintable())
        yield f"    # {shown}"
    yield f"    namespace: {_quoted(parts[0] if '.' in name or '__' in name else 'tools')}"
    yield f"    name: {_quoted(name)}"
    if reads:
        yield f"    risk_class: read_only  {GUESS}: the name begins with a word for reading"
    elif effect:
        risk = "irreversible" if effect in _FINAL else "write" if effect in _LOCAL else "external_side_effect"
        yield f"    risk_class: {risk}  {GUESS}"
        yield f"    effects: [{effect}]  {GUESS}"
    else:
        yield "    risk_class: unknown"
        yield "    # effects: []  # nothing suggests what it does; a rule on intent refuses it"
    arguments = _object(schema.get("properties"))
    sinks = {argument: _sink(argument, _object(one), reads, effect) for argument, one in arguments.items()}
    if any(sinks.values()):
        yield "    arguments:"
    for argument, sink in sinks.items():
        if sink:
            yield f"      {_quoted(argument)}: {sink}  {GUESS}"
        else:
            yield f"      # {_quoted(argument)}: ?  # nothing suggests what goes in there: only the user's own words pass"
    if not reads:
        return
    located = [argument for argument in arguments if LOCATORS.search(argument.lower())]
    if located:
        yield f"    locators: [{', '.join(map(_quoted, located))}]  {GUESS}"
    fields = _fields(plain, output)
    names = [field for field in fields if field in NAMES]
    authors = [field for field in fields if field in AUTHORS]
    if names:
        yield f"    names: [{', '.join(names)}]  {GUESS}"
    if authors:
        yield f"    authors: [{', '.join(authors)}]  {GUESS}"
    if fields:
        yield "    fields:"
        for field, field_class in fields.items():
            yield f"      {_quoted(field)}: {field_class}  {GUESS}"
    else:
        yield "    # fields: {}  # nothing is known of its results: all of them count as text"


_FINAL: Final = frozenset({"pay", "schedule_payment", "delete", "change_password", "buy"})
_LOCAL: Final = frozenset({"create_file", "edit_file", "update_account"})


def _sink(argument: str, schema: Mapping[str, Any], reads: bool, effect: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", argument).lower()
    told = str(schema.get("description") or "").lower()
    sink = next((word for pattern, word in SINKS if re.search(pattern, name)), "")
    if effect in ("pay", "schedule_payment") and (sink == "address" or "iban" in told or "account number" in told):
        sink = "payee"
    elif not sink and "email" in told:
        sink = "address"
    elif not sink and "url" in told:
        sink = "url"
    if sink == "url" or schema.get("format") in ("uri", "url"):
        return "url_fetch" if reads else "url_post"
    if reads:
        return "any"
    if schema.get("type") in ("integer", "number", "boolean") and sink in ("", "any", "text", "date"):
        return "any"
    if not sink and "enum" in schema:
        return "any"
    return sink


def _fields(plain: str, output: Mapping[str, Any]) -> dict[str, str]:
    """By the schema of the result where there is one, else by what such tools usually return."""
    usual = next((fields for pattern, fields in FIELDS if re.search(pattern, plain)), _NOTHING)
    declared = list(_keys(output, 0))
    if not declared:
        return dict(usual)
    found: dict[str, str] = {}
    for key in declared:
        name = key.lower()
        if CONFIDENTIAL.search(name):
            found[key] = "confidential"
        elif name in usual:
            found[key] = usual[name]
        elif re.search(r"^id$|_id$|^id_$|created|updated|timestamp|^date$", name):
            found[key] = "system"
    return found


def _keys(schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    if depth > 8:
        return
    for key, one in _object(schema.get("properties")).items():
        inner = _object(one)
        if inner.get("properties") or inner.get("items"):
            yield from _keys(inner, depth + 1)
        yield key
    if schema.get("items"):
        yield from _keys(_object(schema["items"]), depth + 1)


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) and text.lower() not in _WORDS else json.dumps(text)


_WORDS: Final = frozenset({"on", "off", "yes", "no", "true", "false", "null", "y", "n"})
