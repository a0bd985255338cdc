"""What is at no model's path."""

from __future__ import annotations

from pathlib import Path

import pytest

from .gateway_fixture import Running, asked, running

CONFIG = "model_id: m\ntargets: [{model: scripted, provider: scripted}]\n"


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/messages/batches", "/v1/messages/"])
def test_what_there_is_not_of_messages_is_told_in_its_own_shape(tmp_path: Path, path: str) -> None:
    """G34: a client of that wire reads no other error than its own."""

    async def story(gateway: Running) -> None:
        answer = await gateway.post(path, asked("anthropic", "Hi"))
        message = "Of Messages only POST /v1/messages is served here: no counts of tokens, no batches."
        error = {"type": "not_found_error", "code": "not_found", "message": message}
        assert (answer.status, answer.json) == (404, {"type": "error", "error": error})

    running(tmp_path, CONFIG, story)


def test_a_strange_host_is_refused_in_the_shape_of_messages(tmp_path: Path) -> None:
    """Also below that path, and before anything is looked for."""

    async def story(gateway: Running) -> None:
        answer = await gateway.post("/v1/messages/count_tokens", {}, {"host": "evil.example"})
        assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (403, "error", "permission_error")

    running(tmp_path, CONFIG, story)
