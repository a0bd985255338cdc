"""The OpenAPI document: complete, well formed, and the same tables that answers are checked by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from wardwright.http.admin_routes import ROUTES
from wardwright.http.openapi import document
from wardwright.wire.schema import check, examine

from .desk import Desk
from .test_admin import ADMIN, OTHER, TALK, hold


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def schemas(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "schema" in value:
            yield value["schema"]
        for inner in value.values():
            yield from schemas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schemas(inner)


def test_every_address_is_in_it() -> None:
    """G63: operators' routes, the providers' APIs and the few beside them."""
    listed = {(method.upper(), path) for path, method, _ in operations()}

    assert {(route.method, route.path.replace("*}", "}")) for route in ROUTES} <= listed
    assert {("POST", f"/v1/{name}") for name in ("chat/completions", "responses", "messages")} <= listed
    beside = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models")
    assert {("GET", path) for path in beside} | {("POST", "/mcp/{server}")} <= listed


def test_every_operation_has_a_name_of_its_own() -> None:
    """Generated clients are named by them."""
    names = [operation["operationId"] for _, _, operation in operations()]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


def test_every_place_of_a_path_is_declared() -> None:
    """And nothing else is."""
    for path, _, operation in operations():
        declared = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path)), path


def test_every_schema_is_one() -> None:
    """Good by our own reader and by an independent one."""
    found = list(schemas(document()["paths"]))

    assert len(found) > 100
    for schema in found:
        if "$ref" not in str(schema):
            assert examine(schema) == []
            jsonschema_rs.Draft202012Validator(schema)


def test_every_error_has_the_one_shape() -> None:
    """Whatever is no success refers to it; a proxied server's may be JSON-RPC's own."""
    one, rpc = ({"$ref": f"#/components/schemas/{name}"} for name in ("Error", "RpcError"))
    for path, _, operation in operations():
        for status, response in operation["responses"].items():
            if status >= "400" and (path, status) != ("/readyz", "503"):
                wanted = {"anyOf": [one, rpc]} if path.startswith("/mcp") else one
                assert response["content"]["application/json"]["schema"] == wanted


def test_answers_are_as_the_document_says(desk: Desk) -> None:
    """Every route that was asked something sensible gives what its schema promises."""
    receipt_id = desk.exchange("browser_open", "shell_exec")
    handle = hold(desk).handle
    digest = desk.get(f"{ADMIN}/approvals/{handle}")["digest"]
    asked: list[tuple[str, str, Any]] = [
        ("GET", "/v1/receipts", None),
        ("GET", f"/v1/receipts/{receipt_id}", None),
        ("GET", "/v1/receipts/verify", None),
        ("POST", f"{ADMIN}/simulate", {"transcript": TALK}),
        ("POST", f"{ADMIN}/replay", {"source": OTHER}),
        ("POST", f"{ADMIN}/diff", {"after": OTHER}),
        ("GET", f"{ADMIN}/report", None),
        ("POST", f"{ADMIN}/plans/validate", {"source": "{"}),
        ("POST", f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 0}),
        ("POST", f"{ADMIN}/plans/rollback", {"expected_epoch": 1, "epoch": 0}),
        ("GET", f"{ADMIN}/plans", None),
        ("GET", f"{ADMIN}/plans/1", None),
        ("GET", f"{ADMIN}/sessions/s1", None),
        ("POST", f"{ADMIN}/sessions/s1/release", {"note": "x"}),
        ("GET", f"{ADMIN}/approvals", None),
        ("GET", f"{ADMIN}/approvals/{handle}", None),
        ("POST", f"{ADMIN}/approvals/{handle}/reject", {"seen": digest}),
        ("GET", f"{ADMIN}/models", None),
        ("GET", f"{ADMIN}/models/coding", None),
        ("GET", f"{ADMIN}/models/coding/artifact", None),
        ("PUT", f"{ADMIN}/models/coding/artifact", {"source": "description: x\n", "expected_epoch": 1}),
        ("PUT", f"{ADMIN}/models/coding/tools/lookup", {"enabled": False}),
        ("POST", f"{ADMIN}/stops", {"kind": "tool", "name": "x"}),
        ("GET", f"{ADMIN}/stops", None),
    ]
    for method, path, body in asked:
        answer = desk(method, path, body)
        route = next(one for one in ROUTES if one.method == method and one.pattern.fullmatch(path))
        if answer.status == 200:
            assert check(answer.json, route.answer) == [], path
        else:
            assert (path, answer.status) == (f"{ADMIN}/plans/rollback", 404)
            assert check(answer.json, document()["components"]["schemas"]["Error"]) == []


def test_the_document_needs_no_token(desk: Desk) -> None:
    """It is the same for everybody, and says nothing about this gateway's plan."""
    answer = desk("GET", "/openapi.json", role="nobody")

    assert (answer.status, answer.json) == (200, document())
    assert document()["openapi"] == "3.1.0"
