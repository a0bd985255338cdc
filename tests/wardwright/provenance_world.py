"""A small world for tests of provenance and intent: mail, files, payments, chat and the web, labelled; and a conversation in it."""

from __future__ import annotations

import json
from typing import Any

from wardwright.config import parse_config
from wardwright.gateway import govern
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan, compile_plan
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import Caller, CallItem, Item, ResultItem, TextItem, Turn

CATALOG = """
model_id: assistant
catalog:
  - match: get_emails
    namespace: mail
    risk_class: read_only
    arguments: {folder: any}
    locators: [folder]
    authors: [sender]
    names: [subject]
    fields:
      id: system
      sender: {class: system, roles: [sender, from]}
      recipients: {class: system, roles: [recipients, everyone, thread]}
      date: system
      subject: label
      body: text
  - match: send_email
    namespace: mail
    risk_class: external_side_effect
    effects: [send]
    arguments: {to: address, subject: text, body: text, attachment: object}
    fields: {id: created, to: system}
  - match: delete_email
    namespace: mail
    risk_class: irreversible
    effects: [delete]
    arguments: {id: object}
  - match: get_contacts
    namespace: mail
    risk_class: read_only
    names: [name]
    fields: {name: directory, email: directory, phone: directory}
  - match: read_file
    namespace: files
    risk_class: read_only
    arguments: {path: any}
    locators: [path]
    fields: {"": {class: text, when: {"/wiki/*": member_text}}, owner: system}
  - match: list_files
    namespace: files
    risk_class: read_only
    names: [name]
    fields: {id: system, name: label, owner: system}
  - match: delete_file
    namespace: files
    risk_class: irreversible
    effects: [delete]
    arguments: {id: object, path: path}
  - match: write_file
    namespace: files
    risk_class: write
    effects: [draft]
    arguments: {path: path, content: text}
    fields: {id: created, path: created}
  - match: get_payees
    namespace: bank
    risk_class: read_only
    names: [name]
    fields: {name: payee, iban: payee}
  - match: get_transactions
    namespace: bank
    risk_class: read_only
    names: [sender, recipient]
    fields: {id: system, sender: system, recipient: system, iban: system, subject: text, date: system, amount: system}
  - match: get_account
    namespace: bank
    risk_class: read_only
    fields: {iban: self, holder: self, passport: confidential}
  - match: pay
    namespace: bank
    risk_class: irreversible
    effects: [pay]
    arguments: {recipient: payee, amount: any, subject: text, date: date}
  - match: set_password
    namespace: bank
    risk_class: irreversible
    effects: [change_password]
    arguments: {password: secret}
  - match: web_get
    namespace: web
    risk_class: read_only
    locators: [url]
    arguments: {url: url_fetch}
    fields: {"": text}
  - match: web_post
    namespace: web
    risk_class: external_side_effect
    effects: [post]
    arguments: {url: url_post, content: text}
  - match: chat_post
    namespace: chat
    risk_class: external_side_effect
    effects: [post]
    arguments: {channel: object, body: text}
  - match: chat_channels
    namespace: chat
    risk_class: read_only
    names: [name]
    fields: {id: system, name: label}
  - match: chat_read
    namespace: chat
    risk_class: read_only
    arguments: {channel: any}
    locators: [channel]
    authors: [author]
    fields: {author: directory, body: text}
  - match: invite_user
    namespace: chat
    risk_class: external_side_effect
    effects: [invite]
    arguments: {user: address, email: address}
  - match: odd_tool
    namespace: odd
    risk_class: unknown
"""

PROVENANCE = """
governance:
  - id: provenance
    kind: argument_provenance
    action: deny_call
    tool: {name: "*", phase: planning}
    self: ["me@home.test"]
    protected_paths: ["/etc/*"]
    untrusted_text: ["^<pasted>"]
"""
INTENT = """
governance:
  - id: intent
    kind: intent
    action: deny_call
    tool: {risk_class: [write, irreversible, external_side_effect, unknown]}
"""


def plan_of(governance: str = PROVENANCE, catalog: str = CATALOG) -> Plan:
    return compile_plan(parse_config(catalog + governance))


class Talk:
    """A conversation on the wire: the transcript grows, every request and reply passes the gates."""

    def __init__(self, plan: Plan, session: str = "s") -> None:
        self.plan = plan
        self.registers = Registers(key=b"test")
        self.items: list[Item] = []
        self.caller = Caller(session_id=session)
        self.now = 1_000
        self.count = 0

    def _govern(self, turn: Turn) -> Ruling:
        self.now += 1
        ruling, delta = govern(self.plan, self.registers, turn, self.now)
        self.registers = apply(self.registers, delta)
        return ruling

    def _asks(self) -> Ruling:
        return self._govern(Turn("request", "chat_completions", "assistant", tuple(self.items), caller=self.caller))

    def user(self, text: str) -> Talk:
        self.items.append(TextItem("user", text))
        return self

    def reads(self, name: str, arguments: dict[str, Any], result: Any, *, failed: bool = False) -> Talk:
        """A call whose ruling does not matter, and its result."""
        ruling = self.calls(name, arguments)
        assert ruling.decision == "allow", ruling.message
        return self.answers(result, failed=failed)

    def answers(self, result: Any, *, failed: bool = False) -> Talk:
        """The result of the last call that passed."""
        content = result if isinstance(result, str) else json.dumps(result)
        self.items.append(ResultItem(f"call-{self.count}", content, failed or None))
        return self

    def calls(self, name: str, arguments: Any) -> Ruling:
        """The ruling on a call that the model now makes."""
        assert self._asks().decision == "allow"
        self.count += 1
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = CallItem(f"call-{self.count}", name, written)
        ruling = self._govern(Turn("reply", "chat_completions", "assistant", (call,), caller=self.caller))
        if ruling.decision == "allow":
            self.items.append(call)
        return ruling

    def passes(self, name: str, arguments: Any) -> bool:
        return self.calls(name, arguments).decision == "allow"
