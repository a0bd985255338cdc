"""One visit to a page: who visits, what was sent, and what can be answered. Areas of pages declare `Page`s; `pages` serves them.

A page asks the gateway by the same routes as the admin API, with the same checks and roles; it has no rights of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from wardwright import ui
from wardwright.errors import WardwrightError
from wardwright.http.admin_routes import find
from wardwright.http.auth import ROLES
from wardwright.http.route import Ask, Gateway, NotFound, Role, dump, path_pattern, read_body, read_query

NAV: Final[tuple[tuple[str, str], ...]] = (
    ("/live", "Live"),
    ("/receipts", "Receipts"),
    ("/policy", "Policy"),
    ("/models", "Models"),
    ("/agents", "Agent sessions"),
)
_PART_OF: Final = {"/replay": "/receipts", "/approvals": "/live"}
NOTICE: Final = "wardwright_notice"
"""The cookie that carries one sentence from a form to the page after it."""
_NOTICE_CHARS: Final = 400


class RoleTooLow(WardwrightError, PermissionError):
    """Somebody with more rights must do this."""

    status: ClassVar[int] = 403
    code: ClassVar[str] = "role_too_low"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page sends back."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Beside those that every page has."""
    kind: bytes = b"text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to a page by somebody who is signed in. Lives as long as the request."""

    gateway: Gateway
    operator_id: str
    role: Role
    csrf: str
    """Every form has it as the hidden field `csrf`."""
    address: str
    """The path that was asked for."""
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    """First value by name; empty ones are left out."""
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """First value by name; line ends as \\n. Without `csrf`."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    follow: Callable[[], str] = str
    """Lets this process follow a plan that was just activated; what went wrong, or nothing."""
    heavy: bool = False
    notice: str = ""

    def may(self, role: Role) -> bool:
        """Whether to show a control that needs this role."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | bool | Sequence[str] | None] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """What the admin API answers; its errors are raised as they are (BadRequest, NotFound, Conflict, ConfigError …).
        Values of `query` that are None are left out, lists are repeated. `path` is not quoted."""
        found = find(method, path)
        if found is None:
            # A name that is empty, or that no address can have.
            raise NotFound("Nothing has such a name.")
        route, parts = found
        if not self.may(route.role):
            raise RoleTooLow(f"This needs the role {route.role}; {self.operator_id!r} is {self.role}.")
        if route.heavy and not self.heavy:
            raise RuntimeError(f"{path} is heavy: so must be the page that asks it")
        given = [(name, text) for name, value in (query or {}).items() for text in _texts(value)]
        asked = Ask(
            self.gateway, self.operator_id, dict(parts), read_query(route, given), read_body(route, dump(body or {}))
        )
        answer = route.handler(asked)
        if route.activates and (problem := self.follow()):
            return {**answer, "problem": problem}
        return answer

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Answer:
        """A whole page: `layout.html` gets who visits and where."""
        here = next(
            (path for path, _ in NAV if f"{self.address}/".startswith(f"{path}/")), _PART_OF.get(self.address, "")
        )
        text = ui.render(template, visit=self, nav=NAV, here=here, notice=self.notice, **values)
        headers = (_cookie(NOTICE, "", 0),) if self.notice else ()
        return Answer(text.encode("utf-8", "replace"), status, headers)

    def fragment(self, template: str, /, *, status: int = 200, **values: Any) -> Answer:
        """A piece of a page, for the script that puts it there."""
        return Answer(ui.render(template, visit=self, **values).encode("utf-8", "replace"), status)

    def redirect(self, path: str, notice: str = "") -> Answer:
        """On to another page (303), with a sentence about what was done."""
        return redirect(path, (_cookie(NOTICE, _marked(notice[:_NOTICE_CHARS], self.csrf), 60),) if notice else ())


Handler: TypeAlias = Callable[[Visit], Answer]


@dataclass(frozen=True, slots=True)
class Page:
    """One address. `{name}` in the path is one part of it, `{name*}` one or more."""

    method: Literal["GET", "POST"]
    path: str
    role: Role
    handler: Handler
    heavy: bool = False
    """Reads much: one at a time, together with the heavy questions of the admin API."""

    @property
    def pattern(self) -> re.Pattern[str]:
        return path_pattern(self.path)


def redirect(path: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(b"", 303, ((b"location", quote(path, safe="/?&=#%+:,;@!$'()*~-._").encode()), *headers))


def read_notice(cookie: str, csrf: str) -> str:
    """The sentence of such a cookie; nothing when it was not made for this sign-in: other programs of the host can set cookies too."""
    text = unquote(cookie.partition(".")[2])
    return text if hmac.compare_digest(cookie.encode(), _marked(text, csrf).encode()) else ""


def _marked(notice: str, csrf: str) -> str:
    text = quote(notice, errors="replace")
    return f"{hmac.new(csrf.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]}.{text}"


def _cookie(name: str, value: str, seconds: int) -> tuple[bytes, bytes]:
    return b"set-cookie", f"{name}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict".encode()


def _texts(value: str | int | bool | Sequence[str] | None) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, str | int):
        return (str(value),)
    return value
