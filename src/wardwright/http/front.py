"""The whole application: models' requests go to `app`, proxied MCP servers, operators and their pages to their own; here are the few
paths beside them, and the beginning and end of the process."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import orjson

from wardwright.http import guard
from wardwright.http.app import App, AsgiApp, Receive, Scope, Send, preflight
from wardwright.http.pages import PagesApp
from wardwright.http.service import Service
from wardwright.wire import edit
from wardwright.wire.refusal import Refusal

_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_MESSAGES: Final = "/v1/messages/"


class Front:
    """The ASGI application of one process."""

    def __init__(self, service: Service, operators: AsgiApp, mcp: AsgiApp, pages: PagesApp) -> None:
        self.service = service
        self._operators = operators
        self._mcp = mcp
        self._pages = pages
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(scope, receive, send)

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The same, for a server that takes an application for what it is: without a coroutine around that of every request."""
        app = self._app
        if scope["type"] != "http":
            return self._live(receive, send) if scope["type"] == "lifespan" else _nothing()
        if app is None:
            return _answer(send, 503, {"error": {"type": "governance_unavailable", "message": "Not started."}})
        return app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.open()
        except Exception as error:  # noqa: BLE001
            # INVARIANT: a gateway that cannot start does not serve; the server tells why and ends.
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def open(self) -> None:
        """Before the first request; a server does it by the lifespan protocol."""
        await self.service.open()
        self._app = App(self.service, self._others)

    async def close(self) -> None:
        self._app = None
        await self.service.close()

    async def _others(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, path = self.service, scope["path"]
        if path == "/healthz":
            await _answer(send, 200, {"status": "ok"})
            return
        raw: dict[bytes, bytes] = dict(scope["headers"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw.items()}
        page = self._pages.serves(path)
        refusal = guard.check(scope, raw, service.hosts, service.deployment.limits.header_bytes, form=page)
        if scope["method"] == "OPTIONS":
            await preflight(send, headers, service.hosts)
        elif path.startswith(_MESSAGES):
            await _answer(send, *_no_message(refusal))
        elif refusal is not None:
            await _refuse(send, refusal)
        elif page:
            await self._pages(scope, receive, send)
        elif path == "/readyz":
            problem = await service.ready()
            if problem:
                await _answer(send, 503, {"status": "unavailable", "reason": problem})
            else:
                await _answer(send, 200, {"status": "ok", "epoch": service.overlay.epoch})
        elif path == "/v1/models" and scope["method"] == "GET":
            await self._models(headers, scope, send)
        elif path == "/metrics":
            await self._metrics(headers, scope, send)
        elif path.startswith("/mcp/"):
            await self._mcp(scope, receive, send)
        else:
            await self._operators(scope, receive, send)

    async def _models(self, headers: dict[str, str], scope: Scope, send: Send) -> None:
        principal = self.service.authenticator.authenticate(headers, _peer(scope))
        if isinstance(principal, Refusal):
            await _refuse(send, principal)
            return
        known = [name for name in self.service.plan.models if principal.may_use(name)]
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "wardwright"} for name in known]
        await _answer(send, 200, {"object": "list", "data": models})

    async def _metrics(self, headers: dict[str, str], scope: Scope, send: Send) -> None:
        """Counts tell who uses what: on an address that others can reach, only operators read them."""
        if not self.service.local:
            operator = self.service.authenticator.admin(headers, _peer(scope))
            if isinstance(operator, Refusal):
                await _refuse(send, operator)
                return
        text = self.service.metrics.text().encode()
        await send({"type": "http.response.start", "status": 200, "headers": [_TEXT, *guard.API_HEADERS]})
        await send({"type": "http.response.body", "body": text})


def _peer(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _no_message(refusal: Refusal | None) -> tuple[int, Any]:
    """For clients of Messages, who ask for more than there is, in the shape that they read."""
    message = "Of Messages only POST /v1/messages is served here: no counts of tokens, no batches."
    found = refusal or Refusal(404, "not_found_error", "not_found", message)
    return found.status, edit.of("anthropic").refusal(found)


async def _nothing() -> None:
    """To a scope of another kind."""


async def _refuse(send: Send, refusal: Refusal) -> None:
    error = {"type": refusal.kind, "code": refusal.code, "message": refusal.message}
    await _answer(send, refusal.status, {"error": error})


async def _answer(send: Send, status: int, value: Any) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, *guard.API_HEADERS]})
    await send({"type": "http.response.body", "body": orjson.dumps(value)})
