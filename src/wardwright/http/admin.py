"""The operators' door: JSON in, JSON out, always with a token, each question with the role it needs.

Reads what was sent, asks one function per route on a thread of its own, and words every error the same way. Decides nothing about
plans, receipts or approvals; what is wrong with a request is never a 5xx.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from wardwright.archive import SessionUnknown
from wardwright.errors import ConfigError, GovernanceUnavailable, VersionConflict, WardwrightError
from wardwright.http.admin_plans import problem_json
from wardwright.http.admin_routes import find, methods
from wardwright.http.openapi import document
from wardwright.http.route import Ask, Gateway, Lines, Route, dump, read_body, read_query
from wardwright.wire.refusal import Refusal

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Asked = TypeVar("Asked")
Found = TypeVar("Found")

DOCUMENT: Final = "/openapi.json"
BODY_BYTES: Final = 8 * 1024 * 1024
WAITING: Final = 4
"""Questions over the whole archive that may wait for the one that is being answered."""
_LINES: Final = 64
_FIXED: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "governance_unavailable",
}


class Refused(Exception):
    """A question that is not asked."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class AdminApp:
    """An ASGI application. Lives as long as the gateway; `close` when it ends."""

    def __init__(self, gateway: Gateway, *, body_bytes: int = BODY_BYTES) -> None:
        self._gateway = gateway
        self._body_bytes = body_bytes
        # Of its own: a long question must not take the threads on which requests are judged.
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="wardwright-admin")
        self._heavy = asyncio.Semaphore(1)
        self._waiting = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except Refused as refused:
            answer = _error(refused.status, refused.code, refused.message, headers=refused.headers)
        except WardwrightError as error:
            answer = _told(error)
        except ClientDisconnect:
            return
        except Exception:
            # INVARIANT: whoever asks is told that it failed, not how; the server's log has the rest.
            await _error(500, "internal_error", "The gateway failed to answer this.")(scope, receive, send)
            raise
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.scope["path"] == DOCUMENT and request.method == "GET":
            return _json(document())
        route, path = _find(request.method, request.scope["path"])
        headers = dict(request.headers.items())
        peer = request.client.host if request.client is not None else ""
        operator = self._gateway.authenticator.admin(headers, peer, route.role)
        if isinstance(operator, Refusal):
            sent = {"www-authenticate": "Bearer"} if operator.status == 401 else {}
            raise Refused(operator.status, operator.code, operator.message, sent)
        query = read_query(route, request.query_params.multi_items())
        body: dict[str, Any] = {}
        if route.body is not None:
            body = read_body(route, await self._body(request))
        ask = Ask(self._gateway, operator.id, path, query, body)
        found = await self.run(route.handler, ask, heavy=route.heavy)
        if route.activates:
            overlay = self._gateway.overlay
            await overlay.poll()
            if overlay.plan_error:
                found = {**found, "problem": overlay.plan_error}
        if isinstance(found, Lines):
            return StreamingResponse(self._lines(found.lines), 200, {**_FIXED, "content-type": "application/x-ndjson"})
        return _json(found)

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Also what keeps a page of another site from asking in an operator's name.
            raise Refused(415, "json_only", "Send JSON, with the header Content-Type: application/json.")
        pieces: list[bytes] = []
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._body_bytes:
                raise Refused(413, "body_too_large", f"The body is longer than {self._body_bytes} bytes.")
            pieces.append(piece)
        return b"".join(pieces)

    async def run(self, work: Callable[[Asked], Found], asked: Asked, *, heavy: bool) -> Found:
        """Asks on a thread of the operators'; what is heavy, one at a time (Refused when too many wait)."""
        loop = asyncio.get_running_loop()
        if not heavy:
            return await loop.run_in_executor(self._threads, work, asked)
        if self._waiting >= WAITING:
            message = "Other questions over all receipts are being answered. Try again in a moment."
            raise Refused(429, "too_many_requests", message, {"retry-after": "5"})
        self._waiting += 1
        try:
            async with self._heavy:
                return await loop.run_in_executor(self._threads, work, asked)
        finally:
            self._waiting -= 1

    async def _lines(self, lines: Iterator[bytes]) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            piece = await loop.run_in_executor(self._threads, lambda: b"".join(itertools.islice(lines, _LINES)))
            if not piece:
                return
            yield piece


def admin_app(gateway: Gateway, *, body_bytes: int = BODY_BYTES) -> AdminApp:
    """The operators' application. Host and Origin are checked by whoever calls it, as for every other path."""
    return AdminApp(gateway, body_bytes=body_bytes)


def _find(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    found = find(method, path)
    if found is not None:
        return found
    allowed = ", ".join(methods(path))
    if allowed:
        raise Refused(405, "method_not_allowed", f"Send this with {allowed}.", {"allow": allowed})
    raise Refused(404, "not_found", "There is nothing at this address. /openapi.json lists what there is.")


def _json(value: Any) -> Response:
    return Response(dump(value), 200, {**_FIXED, "content-type": "application/json"})


def told(error: WardwrightError) -> tuple[int, str, str]:
    """Status, code and message of an error for whoever asked."""
    if isinstance(error, ConfigError):
        count = len(error.problems)
        message = f"The plan has {count} problem{'s' if count != 1 else ''}; nothing was changed."
        return 422, "invalid_plan", message
    if isinstance(error, SessionUnknown):
        return 404, "not_found", f"There is {error}."
    if isinstance(error, VersionConflict):
        return 409, "conflict", f"{error}. Look at it again."
    if isinstance(error, GovernanceUnavailable):
        return 503, error.code, str(error)
    return error.status, error.code, str(error)


def _told(error: WardwrightError) -> Response:
    status, code, message = told(error)
    if isinstance(error, ConfigError):
        return _error(status, code, message, problems=[problem_json(problem) for problem in error.problems])
    return _error(status, code, message)


def _error(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, **further: Any
) -> Response:
    told = {"type": _KINDS.get(status, "invalid_request_error"), "code": code, "message": message, **further}
    return Response(dump({"error": told}), status, {**_FIXED, "content-type": "application/json", **(headers or {})})
