"""Somebody with a browser that runs no scripts: signs in, opens pages, fills in forms, follows redirects; over a `Desk`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from wardwright.http.guard import PAGE_HEADERS
from wardwright.http.pages import PAGES, Page, PagesApp

from .desk import Answer, Desk

FORM = "application/x-www-form-urlencoded"


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    buttons: list[str] = field(default_factory=list[str])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[tuple[str, str]] = []
        self.text: list[str] = []
        self._form: Form | None = None
        self._area = ""
        self._link: str | None = None
        self._button = False
        self._select = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(given.get("action", ""), given.get("method", "get"))
            self.forms.append(self._form)
        elif tag == "a":
            self._link = given.get("href", "")
        elif tag == "button":
            self._button = True
            if self._form is not None and given.get("name"):
                self._form.buttons.append(f"{given['name']}={given.get('value', '')}")
        elif self._form is not None and tag == "input" and given.get("name"):
            if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                self._form.fields[given["name"]] = given.get("value", "")
        elif self._form is not None and tag == "textarea":
            self._area = given.get("name", "")
            self._form.fields[self._area] = ""
        elif self._form is not None and tag == "select":
            self._select = given.get("name", "")
            self._form.fields[self._select] = ""
        elif self._form is not None and tag == "option" and "selected" in given:
            self._form.fields[self._select] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "textarea":
            self._area = ""
        elif tag == "a":
            self._link = None
        elif tag == "button":
            self._button = False

    def handle_data(self, data: str) -> None:
        if self._area and self._form is not None:
            self._form.fields[self._area] += data.removeprefix("\n")
        else:
            self.text.append(data)
        if self._link is not None:
            self.links.append((data.strip(), self._link))


@dataclass
class Seen:
    """A page, as it came."""

    answer: Answer
    address: str
    _reader: _Reader | None = field(default=None, repr=False)

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def html(self) -> str:
        return self.answer.body.decode()

    @property
    def text(self) -> str:
        """What somebody reads, white space made even."""
        return re.sub(r"\s+", " ", " ".join(self._read().text)).strip()

    @property
    def forms(self) -> list[Form]:
        return self._read().forms

    @property
    def links(self) -> list[tuple[str, str]]:
        return self._read().links

    def link(self, text: str) -> str:
        return next(unescape(address) for name, address in self.links if name == text)

    def form(self, action: str) -> Form:
        return next(one for one in self.forms if one.action == action)

    def _read(self) -> _Reader:
        if self._reader is None:
            self._reader = _Reader()
            self._reader.feed(self.html)
        return self._reader


class Visitor:
    """Cookies are kept, and sent back; every answer has the headers of a page."""

    def __init__(self, desk: Desk, role: str = "operator", pages: tuple[Page, ...] = PAGES) -> None:
        self.app = PagesApp(desk, desk.app, pages)
        self.cookies: dict[str, str] = {}
        if role:
            signed = self.post("/signin", token=role)
            assert signed.status == 303, signed.text

    def get(self, address: str, **headers: str) -> Seen:
        return self._ask("GET", address, b"", {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, address: str, headers: Mapping[str, str] | None = None, /, **fields: str) -> Seen:
        return self._ask("POST", address, urlencode(fields).encode(), {"content-type": FORM, **(headers or {})})

    def send(self, form: Form, **fields: str) -> Seen:
        """Fills in a form and sends it."""
        values = {**form.fields, **fields}
        if form.method == "post":
            return self.post(form.action, **values)
        return self.get(f"{form.action}?{urlencode(values)}")

    def follow(self, seen: Seen) -> Seen:
        assert seen.status == 303, (seen.status, seen.text)
        return self.get(seen.answer.headers["location"])

    def _ask(self, method: str, address: str, body: bytes, headers: Mapping[str, str]) -> Seen:
        parts = urlsplit(address)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {**headers, **({"cookie": cookie} if cookie else {})}
        answer, cookies = asyncio.run(_call(self.app, method, unquote(parts.path), body, sent, parts.query))
        for one in cookies:
            name, _, rest = one.partition("=")
            value, _, further = rest.partition(";")
            if "Max-Age=0" in further:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        if not parts.path.startswith("/static/"):
            assert {name.decode(): value.decode() for name, value in PAGE_HEADERS}.items() <= answer.headers.items()
        return Seen(answer, address)


async def _call(
    app: Any, method: str, path: str, body: bytes, headers: Mapping[str, str], query: str
) -> tuple[Answer, list[str]]:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "scheme": "http",
    }
    status, found, pieces, cookies = 0, dict[str, str](), list[bytes](), list[str]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message["headers"]:
                if name == b"set-cookie":
                    cookies.append(value.decode())
                found[name.decode()] = value.decode()
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, found, b"".join(pieces)), cookies
