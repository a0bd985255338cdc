"""The world the agent acts in: a mailbox, a drive, a bank, a chat, a calendar, notes and a small web, all in memory.

Executes the tools of tools.json and writes down every effect in `done`, which is what runs are judged by. Knows no policy.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).resolve().parent
TOOLS: Final[list[dict[str, Any]]] = json.loads((HERE / "tools.json").read_text("utf-8"))


def read_yaml(path: Path) -> Any:
    """By the loader in C where there is one: the stories are long."""
    return yaml.load(path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


SEED: Final[dict[str, Any]] = read_yaml(HERE / "world.yaml")
OWNER: Final = "mira.holt@larkfield.example"


class ToolFailed(Exception):
    """What a tool says when it cannot do its work."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that happened and that others, or the user tomorrow, will notice."""

    kind: str
    tool: str
    arguments: Mapping[str, Any]


class World:
    """One world per run: the seed, and what the run adds to it. Lists are added to, mappings are updated."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.data: dict[str, Any] = copy.deepcopy(SEED)
        self.done: list[Effect] = []
        self.errors: dict[str, str] = {}
        self.tools = copy.deepcopy(TOOLS)
        self.count = 100
        for name, more in copy.deepcopy(dict(given or {})).items():
            if name == "errors":
                self.errors = more
            elif name == "descriptions":
                for tool in self.tools:
                    tool["description"] += more.get(tool["name"], "")
            elif isinstance(self.data[name], list):
                self.data[name] = [*more, *self.data[name]]
            else:
                self.data[name].update(more)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool returns, as JSON. ToolFailed when it cannot."""
        if name in self.errors:
            raise ToolFailed(self.errors[name])
        tool: Callable[..., Any] | None = getattr(self, f"_{name}", None)
        if tool is None:
            raise ToolFailed(f"no such tool: {name}")
        kind = EFFECTS.get(name)
        result = tool(**arguments)
        if kind is not None:
            self.done.append(Effect(kind, name, dict(arguments)))
        return json.dumps(result, ensure_ascii=False)

    def _new(self, kind: str) -> str:
        self.count += 1
        return f"{kind}-{self.count}"

    def _find(self, kind: str, one: str, key: str = "id") -> dict[str, Any]:
        for record in self.data[kind]:
            if record[key] == one:
                return record
        raise ToolFailed(f"nothing found under '{one}'")

    # mail

    def _search_emails(self, query: str = "", folder: str = "inbox", limit: int = 20) -> Any:
        wanted = query.lower().split()
        found: list[dict[str, Any]] = []
        for mail in self.data["emails"]:
            text = json.dumps(mail, ensure_ascii=False).lower()
            if mail.get("folder", "inbox") == folder and all(word in text for word in wanted):
                found.append({**_headers(mail), "snippet": mail["body"].strip().splitlines()[0][:120]})
        return {"emails": found[:limit]}

    def _read_email(self, email_id: str) -> Any:
        mail = self._find("emails", email_id)
        more = {"reply_to": mail["reply_to"]} if "reply_to" in mail else {}
        return {**_headers(mail), **more, "body": mail["body"], "attachments": mail.get("attachments", [])}

    def _send_email(self, to: list[str], subject: str, body: str, **more: Any) -> Any:
        for path in more.get("attachments", ()):
            self._find("files", path, "path")
        return {"id": self._new("mail"), "status": "sent"}

    def _reply_email(self, email_id: str, body: str, reply_all: bool = False) -> Any:
        self._find("emails", email_id)
        return {"id": self._new("mail"), "status": "sent"}

    def _forward_email(self, email_id: str, to: list[str], note: str = "") -> Any:
        self._find("emails", email_id)
        return {"id": self._new("mail"), "status": "sent"}

    def _delete_email(self, email_id: str) -> Any:
        self.data["emails"].remove(self._find("emails", email_id))
        return {"status": "deleted"}

    def _list_contacts(self, query: str = "") -> Any:
        return {"contacts": [one for one in self.data["contacts"] if query.lower() in one["name"].lower()]}

    def _add_contact(self, name: str, email: str, phone: str = "") -> Any:
        self.data["contacts"].append({"name": name, "email": email, "phone": phone, "company": ""})
        return {"id": self._new("contact"), "status": "saved"}

    # files

    def _list_files(self, folder: str = "/") -> Any:
        start = folder.rstrip("/") + "/"
        return {"files": [_file(one) for one in self.data["files"] if one["path"].startswith(start)]}

    def _search_files(self, query: str) -> Any:
        wanted = query.lower().split()
        return {
            "files": [
                _file(one)
                for one in self.data["files"]
                if all(word in f"{one['path']} {one['content']}".lower() for word in wanted)
            ]
        }

    def _read_file(self, path: str) -> Any:
        found = self._find("files", path, "path")
        return {**_file(found), "content": found["content"]}

    def _write_file(self, path: str, content: str) -> Any:
        self.data["files"] = [one for one in self.data["files"] if one["path"] != path]
        self.data["files"].append({"path": path, "owner": OWNER, "modified": "2026-03-16T09:00:00", "content": content})
        return {"path": path, "status": "written"}

    def _move_file(self, path: str, new_path: str) -> Any:
        self._find("files", path, "path")["path"] = new_path
        return {"path": new_path, "status": "moved"}

    def _delete_file(self, path: str) -> Any:
        self.data["files"].remove(self._find("files", path, "path"))
        return {"status": "deleted"}

    def _share_file(self, path: str, email: str, permission: str = "view") -> Any:
        if not any(one["path"].startswith(path) for one in self.data["files"]):
            raise ToolFailed(f"nothing found under '{path}'")
        return {"status": "shared"}

    def _create_public_link(self, path: str) -> Any:
        self._find("files", path, "path")
        return {"link": f"https://drive.larkfield.example/p/{self._new('link')}"}

    # payments

    def _get_account(self) -> Any:
        return self.data["account"]

    def _list_payees(self) -> Any:
        return {"payees": self.data["payees"]}

    def _list_transactions(self, limit: int = 20) -> Any:
        return {"transactions": self.data["transactions"][:limit]}

    def _send_payment(self, recipient: str, amount: float, currency: str = "EUR", reference: str = "") -> Any:
        return {"id": self._new("payment"), "status": "sent"}

    def _schedule_payment(self, recipient: str, amount: float, date: str, **more: Any) -> Any:
        return {"id": self._new("order"), "status": "scheduled"}

    def _change_password(self, new_password: str) -> Any:
        return {"status": "changed"}

    # chat

    def _list_channels(self) -> Any:
        return {"channels": self.data["channels"]}

    def _read_channel(self, channel: str, limit: int = 20) -> Any:
        if channel not in self.data["messages"]:
            raise ToolFailed(f"no channel '{channel}'")
        return {"messages": self.data["messages"][channel][-limit:]}

    def _list_members(self) -> Any:
        return {"members": self.data["members"]}

    def _post_message(self, channel: str, text: str) -> Any:
        return {"id": self._new("message"), "status": "posted"}

    def _send_direct_message(self, user: str, text: str) -> Any:
        return {"id": self._new("message"), "status": "sent"}

    def _invite_member(self, email: str, channel: str = "") -> Any:
        return {"status": "invited"}

    # calendar

    def _list_events(self, from_date: str = "", to_date: str = "9999") -> Any:
        return {"events": [one for one in self.data["events"] if from_date <= one["start"] <= f"{to_date}T99"]}

    def _create_event(self, title: str, start: str, **more: Any) -> Any:
        event: dict[str, Any] = {
            "id": self._new("evt"),
            "title": title,
            "start": start,
            "organizer": OWNER,
            "participants": [],
            **more,
        }
        self.data["events"].append({"end": start, "location": "", "description": "", **event})
        return {"id": event["id"], "status": "created"}

    def _update_event(self, event_id: str, **more: Any) -> Any:
        self._find("events", event_id).update(more)
        return {"id": event_id, "status": "updated"}

    def _cancel_event(self, event_id: str) -> Any:
        self.data["events"].remove(self._find("events", event_id))
        return {"status": "cancelled"}

    # notes

    def _list_notes(self) -> Any:
        return {"notes": [{key: note[key] for key in ("id", "title", "modified")} for note in self.data["notes"]]}

    def _read_note(self, note_id: str) -> Any:
        note = self._find("notes", note_id)
        return {key: note[key] for key in ("id", "title", "text")}

    def _write_note(self, title: str, text: str) -> Any:
        note = {"id": self._new("note"), "title": title, "modified": "2026-03-16T09:00:00", "text": text}
        self.data["notes"].append(note)
        return {"id": note["id"], "status": "written"}

    # the web

    def _web_search(self, query: str) -> Any:
        wanted = query.lower().split()
        return {
            "results": [
                {"title": page["title"], "url": url, "snippet": page["text"].strip().splitlines()[0][:120]}
                for url, page in self.data["pages"].items()
                if any(word in f"{page['title']} {page['text']}".lower() for word in wanted)
            ]
        }

    def _fetch_page(self, url: str) -> Any:
        page = self.data["pages"].get(url, {"title": "", "text": "ok"})
        return {"url": url, "title": page["title"], "text": page["text"], "links": page.get("links", [])}

    def _submit_form(self, url: str, fields: Mapping[str, str]) -> Any:
        return {"status": "accepted"}

    def _find_places(self, query: str, city: str = "") -> Any:
        wanted = query.lower().split()
        return {"places": [one for one in self.data["places"] if any(word in str(one).lower() for word in wanted)]}

    def _read_reviews(self, place_id: str) -> Any:
        return {"reviews": self.data["reviews"].get(place_id, [])}

    def _book_table(self, place_id: str, date: str, time: str, people: int) -> Any:
        self._find("places", place_id)
        return {"id": self._new("booking"), "status": "booked"}


EFFECTS: Final[Mapping[str, str]] = {
    "send_email": "send",
    "reply_email": "send",
    "forward_email": "send",
    "send_direct_message": "send",
    "delete_email": "delete",
    "delete_file": "delete",
    "add_contact": "save a contact",
    "write_file": "write",
    "write_note": "write",
    "move_file": "move",
    "share_file": "share",
    "create_public_link": "publish",
    "send_payment": "pay",
    "schedule_payment": "pay",
    "change_password": "change password",
    "post_message": "post",
    "submit_form": "post",
    "invite_member": "invite",
    "create_event": "schedule",
    "update_event": "schedule",
    "cancel_event": "cancel",
    "fetch_page": "fetch",
    "book_table": "book",
}
"""What each tool does to the world. Fetching a page tells its owner something, so it is an effect as well."""


def _headers(mail: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": mail["id"],
        "from": mail["from"],
        "from_name": mail.get("from_name", ""),
        "to": mail.get("to", [OWNER]),
        "cc": mail.get("cc", []),
        "date": mail.get("date", "2026-03-12T08:30:00"),
        "subject": mail["subject"],
        "has_attachments": bool(mail.get("attachments")),
    }


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    name = file["path"].rpartition("/")[2]
    return {
        "path": file["path"],
        "name": name,
        "owner": file.get("owner", OWNER),
        "modified": file.get("modified", "2026-02-01T12:00:00"),
        "size": len(file["content"]),
    }
