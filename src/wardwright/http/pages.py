"""The workbench: pages for operators, in the gateway's own process. Signs in, serves files, finds the page, words every error.

Nothing is shown to anybody who is not signed in. The cookie holds the token itself, sealed: every visit is checked as if the token
had been sent, so a token that is taken away, or a role that is lowered, counts from the next request on.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

import orjson

from wardwright import ui
from wardwright.errors import ConfigError, WardwrightError
from wardwright.http import guard, page_agents, page_live, page_models, page_policy, page_receipts
from wardwright.http.admin import AdminApp, Refused, told
from wardwright.http.admin_plans import problem_json
from wardwright.http.route import Gateway, Operator, dump
from wardwright.http.visit import NAV, NOTICE, Answer, Page, RoleTooLow, Visit, read_notice, redirect
from wardwright.wire.refusal import Refusal

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PAGES: Final[tuple[Page, ...]] = (
    *page_live.PAGES,
    *page_receipts.PAGES,
    *page_policy.PAGES,
    *page_models.PAGES,
    *page_agents.PAGES,
)
"""The first that fits a path answers."""

COOKIE: Final = "wardwright_page"
SIGNED_IN_MS: Final = 12 * 3_600_000
FORM_BYTES: Final = 1024 * 1024
FOLLOW_S: Final = 30.0
_FIELDS: Final = 200
_REMEMBERED: Final = 10_000
_SEALED_FOR: Final = b"wardwright page"
_HOME: Final = "/live"
_SIGN_IN: Final = "/signin"
_STATIC: Final = "/static/"
_NEVER: Final = ("/v1/", "/mcp/")
"""What models and agents ask is told apart at once."""
_OWN: Final = frozenset({"/", "/signin", "/signout"})
_FIXED: Final = tuple(header for header in guard.PAGE_HEADERS if header[0] != b"cache-control")
_FOR_EVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK_AGAIN: Final = (b"cache-control", b"no-cache")

_WHAT: Final[Mapping[int, str]] = {
    400: "This cannot be used",
    403: "Not allowed",
    404: "Not found",
    405: "Not here",
    409: "It has changed",
    410: "It is gone",
    413: "Too long",
    415: "Not a form",
    422: "The plan has problems",
    429: "Busy",
    503: "Not available",
}
_HINT: Final[Mapping[int, str]] = {
    403: "Somebody with that role can do it, or sign in with a token that has it.",
    404: "It may have been erased, or the address is not complete.",
    409: "Go back, look at it as it is now, and decide again.",
    429: "Wait a moment, then try again.",
    503: "Nothing was changed. Try again in a moment; /readyz tells whether the gateway is ready.",
}


@dataclass(frozen=True, slots=True)
class _SignedIn:
    operator: Operator
    csrf: str


class PagesApp:
    """An ASGI application. Host and Origin are checked by whoever calls it, as for every other path."""

    def __init__(self, gateway: Gateway, admin: AdminApp, pages: Sequence[Page] = PAGES) -> None:
        self._gateway = gateway
        self._admin = admin
        self._pages: tuple[tuple[re.Pattern[str], Page], ...] = tuple((page.pattern, page) for page in pages)
        self._ended: dict[str, int] = {}
        """Sign-ins that somebody ended in this process, by their field for forms, and until when their cookies would hold."""

    def serves(self, path: str) -> bool:
        """Whether a path is one of the pages'."""
        if path.startswith(_NEVER):
            return False
        return path in _OWN or path.startswith(_STATIC) or any(pattern.fullmatch(path) for pattern, _ in self._pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if path.startswith(_STATIC):
            await _send_file(send, path.removeprefix(_STATIC), scope["query_string"], headers)
            return
        form: dict[str, str] | None = {}
        if scope["method"] == "POST":
            # Signing in brings along what was typed before, in a wrapping of its own.
            form = await _form(receive, FORM_BYTES * (3 if path == _SIGN_IN else 1))
            if form is None:
                await _send(send, _problem(None, 413, f"A form may have {FORM_BYTES // 1024} KB.", path))
                return
        try:
            answer = await self._answer(scope, headers, form)
        except Exception:
            # INVARIANT: whoever asks is told that it failed, not how; the server's log has the rest.
            await _send(send, _problem(None, 500, "The gateway failed to show this.", path))
            raise
        await _send(send, answer)

    async def _answer(self, scope: Scope, headers: Mapping[str, str], form: dict[str, str]) -> Answer:
        path, method = scope["path"], scope["method"]
        if path == "/":
            return redirect(_HOME)
        if path == _SIGN_IN:
            return self._sign_in(scope, headers, form)
        cookies = _cookies(headers)
        signed = self._signed_in(cookies.get(COOKIE, ""))
        if signed is None:
            if headers.get("x-wardwright-fragment"):
                return Answer(b"Sign in first.", 401, kind=b"text/plain; charset=utf-8")
            if method == "POST" and path != "/signout":
                # Somebody typed for longer than the sign-in held.
                form.pop("csrf", "")
                kept = dump({"path": path, "form": form}).decode()
                message = "You are not signed in any more. Sign in again: what you typed is kept."
                return _page("signin.html", status=401, next=_HOME, problem=message, kept=kept)
            asked = scope["query_string"].decode("latin-1")
            wanted = f"{path}?{asked}" if asked else path
            return redirect(
                _SIGN_IN if method != "GET" or wanted == _HOME else f"{_SIGN_IN}?next={quote(wanted, safe='')}"
            )
        visit = self._visit(scope, headers, signed, form, read_notice(cookies.get(NOTICE, ""), signed.csrf))
        if method == "POST" and not hmac.compare_digest(form.pop("csrf", "").encode(), signed.csrf.encode()):
            message = "The form was not made by this page, or you signed in again since. Nothing was changed."
            return _problem(
                visit, 403, message, path, form, hint="Look at what you sent; send it again if it is yours."
            )
        if path == "/signout":
            if method != "POST":
                return redirect(_HOME)
            self._end(signed)
            return redirect(_SIGN_IN, (_signed_cookie("", 0, scope, headers),))
        return await self._visited(visit, method)

    async def _visited(self, visit: Visit, method: str) -> Answer:
        path = visit.address
        page, parts = self._find(method, path)
        if page is None:
            return _problem(visit, 405, "There is no such form at this address.", path)
        try:
            if not visit.may(page.role):
                raise RoleTooLow(f"This needs the role {page.role}; {visit.operator_id!r} is {visit.role}.")
            asked = _with(visit, path=parts, heavy=page.heavy)
            return await self._admin.run(page.handler, asked, heavy=page.heavy)
        except Refused as refused:
            return _problem(visit, refused.status, refused.message, path, visit.form)
        except WardwrightError as error:
            status, _, message = told(error)
            problems = error.problems if isinstance(error, ConfigError) else ()
            return _problem(visit, status, message, path, visit.form, [problem_json(one) for one in problems])

    def _find(self, method: str, path: str) -> tuple[Page | None, Mapping[str, str]]:
        for pattern, page in self._pages:
            match = pattern.fullmatch(path)
            if match is not None and page.method == method:
                return page, match.groupdict()
        return None, {}

    def _visit(
        self, scope: Scope, headers: Mapping[str, str], signed: _SignedIn, form: Mapping[str, str], notice: str
    ) -> Visit:
        loop = asyncio.get_running_loop()
        return Visit(
            self._gateway,
            signed.operator.id,
            signed.operator.role,
            signed.csrf,
            scope["path"],
            query=_firsts(scope["query_string"].decode("latin-1"), keep_blank=False),
            form=form,
            headers=headers,
            follow=lambda: _within(asyncio.run_coroutine_threadsafe(self._follow(), loop)),
            notice=notice,
        )

    async def _follow(self) -> str:
        await self._gateway.overlay.poll()
        return self._gateway.overlay.plan_error

    # who visits

    def _sign_in(self, scope: Scope, headers: Mapping[str, str], form: Mapping[str, str]) -> Answer:
        wanted = _inside(form.get("next") or _firsts(scope["query_string"].decode("latin-1")).get("next", ""))
        if scope["method"] != "POST":
            return _page("signin.html", next=wanted, problem="", kept="")
        token, kept = form.get("token", "").strip(), form.get("kept", "")
        operator = self._operator(token)
        if isinstance(operator, Refusal):
            return _page("signin.html", status=operator.status, next=wanted, problem=operator.message, kept=kept)
        signed = _SignedIn(operator, secrets.token_urlsafe(24))
        held = {"t": token, "x": self._gateway.now_ms() + SIGNED_IN_MS, "c": signed.csrf}
        sealed = self._gateway.keyring.seal(orjson.dumps(held), _SEALED_FOR)
        value = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        cookie = _signed_cookie(value, SIGNED_IN_MS // 1000, scope, headers)
        if kept and (typed := self._typed(kept)) is not None:
            visit = self._visit(scope, headers, signed, {}, "")
            message = "Nothing was sent yet. Look at it, then send it."
            answer = _problem(visit, 200, message, typed[0], typed[1], what="Signed in again")
            return Answer(answer.body, 200, (cookie,))
        return redirect(wanted, (cookie,))

    def _typed(self, kept: str) -> tuple[str, dict[str, str]] | None:
        """The address and the fields of a form that came without a sign-in; None when it is none of ours."""
        try:
            found = orjson.loads(kept)
            path, fields = str(found["path"]), {str(name): str(value) for name, value in found["form"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return (path, fields) if self._find("POST", path)[0] is not None else None

    def _operator(self, token: str) -> Operator | Refusal:
        if not token or not token.isascii() or not token.isprintable():
            return Refusal(401, "authentication_error", "invalid_admin_token", "This token is not known here.")
        return self._gateway.authenticator.admin({"authorization": f"Bearer {token}"}, "")

    def _signed_in(self, cookie: str) -> _SignedIn | None:
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            kept = orjson.loads(self._gateway.keyring.unseal(sealed, _SEALED_FOR))
        except ValueError:  # nothing, or sealed by nobody we know
            return None
        if kept["x"] <= self._gateway.now_ms() or kept["c"] in self._ended:
            return None
        operator = self._operator(kept["t"])
        return None if isinstance(operator, Refusal) else _SignedIn(operator, kept["c"])

    def _end(self, signed: _SignedIn) -> None:
        """A copy of the cookie opens nothing any more."""
        now = self._gateway.now_ms()
        held = [(csrf, until) for csrf, until in self._ended.items() if until > now]
        self._ended = dict([*held[-_REMEMBERED:], (signed.csrf, now + SIGNED_IN_MS)])


def pages_app(gateway: Gateway, admin: AdminApp) -> PagesApp:
    """The operators' pages, on the threads of the admin application."""
    return PagesApp(gateway, admin)


# what was sent


async def _form(receive: Receive, limit: int) -> dict[str, str] | None:
    """The fields of a form; None when it is too long."""
    pieces: list[bytes] = []
    size = 0
    while (message := await receive())["type"] == "http.request":
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            break
    fields = _firsts(b"".join(pieces).decode("latin-1"))
    # Browsers send line ends as \r\n; nothing here was written with them.
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def _firsts(text: str, *, keep_blank: bool = True) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=keep_blank, max_num_fields=_FIELDS)
    except ValueError:  # more fields than any page has
        return {}
    return dict(reversed(pairs))


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """By name. Other programs of this machine may have set any nonsense beside ours, which must not take ours away."""
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _inside(wanted: str) -> str:
    """An address of ours: a sign-in leads nowhere else."""
    parts = urlsplit(wanted)
    own = wanted.startswith("/") and not wanted.startswith(("//", "/\\", "/sign")) and not parts.netloc
    return wanted if own and wanted.isprintable() else _HOME


def _within(following: Future[str]) -> str:
    try:
        return following.result(FOLLOW_S)
    except TimeoutError:
        return f"It has not followed within {FOLLOW_S:g} seconds."


def _with(visit: Visit, **changes: Any) -> Visit:
    fields = {name: getattr(visit, name) for name in Visit.__dataclass_fields__}
    return Visit(**{**fields, **changes})


# what is sent


def _page(template: str, /, *, status: int = 200, **values: Any) -> Answer:
    """A page for somebody who is not signed in."""
    return Answer(ui.render(template, visit=None, notice="", nav=(), here="", **values).encode(), status)


def _problem(
    visit: Visit | None,
    status: int,
    message: str,
    path: str,
    form: Mapping[str, str] | None = None,
    problems: Sequence[Mapping[str, Any]] = (),
    *,
    what: str = "",
    hint: str | None = None,
) -> Answer:
    """What is wrong, where, and what to do; with everything that was typed, to send it again."""
    values: dict[str, Any] = {
        "what": what or _WHAT.get(status, "Something went wrong"),
        "message": message,
        "problems": problems,
        "hint": _HINT.get(status, "") if hint is None else hint,
        "sent": sorted((form or {}).items()) if visit is not None else [],
        "action": path,
        "back": next((one for one, _ in NAV if f"{path}/".startswith(f"{one}/")), _HOME),
    }
    if visit is None:
        return _page("problem.html", status=status, **values)
    return visit.page("problem.html", status=status, **values)


def _signed_cookie(value: str, seconds: int, scope: Scope, headers: Mapping[str, str]) -> tuple[bytes, bytes]:
    # Where something in front of us speaks TLS, the browser's own word for its address tells.
    https = scope.get("scheme") == "https" or headers.get("origin", "").lower().startswith("https://")
    secure = "; Secure" if https else ""
    text = f"{COOKIE}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode()


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body))]
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [*headers, *guard.PAGE_HEADERS, *answer.headers],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


async def _send_file(send: Send, name: str, query: bytes, headers: Mapping[str, str]) -> None:
    found = ui.static(name)
    if found is None:
        await _send(send, Answer(b"There is no such file.", 404, kind=b"text/plain; charset=utf-8"))
        return
    tag = f'"{found.digest}"'
    known = tag in [one.strip() for one in headers.get("if-none-match", "").split(",")]
    body = b"" if known else found.body
    sent = [
        (b"content-type", found.kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"etag", tag.encode()),
        _FOR_EVER if query == f"v={found.digest}".encode() else _ASK_AGAIN,
        *_FIXED,
    ]
    await send({"type": "http.response.start", "status": 304 if known else 200, "headers": sent})
    await send({"type": "http.response.body", "body": body})


__all__ = ["COOKIE", "PAGES", "Page", "PagesApp", "Visit", "pages_app"]
