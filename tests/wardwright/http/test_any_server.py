"""The gateway on an ASGI server that is not its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn

from wardwright import create_app
from wardwright.http.app import AsgiApp, Receive, Scope, Send
from wardwright.http.start import Front

PLAN = """\
model_id: coding
targets: [{model: scripted, provider: scripted}]
governance:
- {id: no-keys, kind: request_guard, match: "BEGIN PRIVATE KEY", message: Take the key out.}
"""


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Front]:
    before = gc.get_threshold()
    yield create_app(PLAN, str(tmp_path / "ward.db"))
    gc.unfreeze()  # an application that serves has its own
    gc.set_threshold(*before)


@contextlib.contextmanager
def elsewhere(application: AsgiApp) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        config = uvicorn.Config(application, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_any_asgi_server_will_do(application: Front, stream: bool) -> None:
    """It is not told by whoever serves what our own server tells, and answers, streams and refuses all the same."""
    body = {"model": "coding", "messages": [{"role": "user", "content": "x" * 200_000}], "stream": stream}
    secret = {**body, "messages": [{"role": "user", "content": "BEGIN PRIVATE KEY"}]}
    with elsewhere(application) as address, httpx2.Client(base_url=address, timeout=30) as client:
        assert client.get("/readyz").json() == {"status": "ok", "epoch": 1}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
        assert answer.text.endswith("data: [DONE]\n\n") if stream else answer.json()["choices"]
        refused = client.post("/v1/chat/completions", json=secret)
        assert (refused.status_code, "Take the key out." in refused.text) == (403, True)


def test_a_server_may_say_that_it_has_no_extensions(application: Front) -> None:
    """ASGI lets it leave them out, or name none."""

    async def without(scope: Scope, receive: Receive, send: Send) -> None:
        await application({**scope, "extensions": None}, receive, send)

    body = {"model": "coding", "messages": [{"role": "user", "content": "Hello."}]}
    with elsewhere(without) as address, httpx2.Client(base_url=address, timeout=30) as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
