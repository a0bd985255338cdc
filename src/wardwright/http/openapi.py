"""The OpenAPI document of everything this gateway answers: operators' questions from their own tables, the rest by hand.

What a provider's API takes is the provider's to say; here those bodies are open objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from wardwright.http.admin_routes import ROUTES
from wardwright.http.route import Parameter, Route, Schema

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_TOLD: Final[Mapping[int, str]] = {
    400: "What was sent cannot be used",
    401: "No token, or an unknown one",
    403: "Not allowed",
    404: "No such thing",
    405: "Another method",
    408: "The body came too slowly",
    409: "It is not any more as it was looked at",
    410: "It is gone",
    413: "Too long",
    415: "Not JSON",
    422: "The plan cannot be activated; every problem with its place",
    429: "Too much at once; try again",
    431: "Headers too long",
    500: "The gateway failed",
    502: "The provider failed",
    503: "The store or the policy engine is out of order: nothing passes",
    504: "The provider took too long",
}
_ERROR: Final[Schema] = {"$ref": "#/components/schemas/Error"}
_RPC_ERROR: Final[Schema] = {"anyOf": [_ERROR, {"$ref": "#/components/schemas/RpcError"}]}
"""What comes before a message is read is told in the one shape, the rest in JSON-RPC's."""
_EDGE: Final = (400, 401, 403, 421, 431, 500, 503)
"""What any address may answer: the host, the origin and the headers are looked at before anything else."""
_MODEL_ERRORS: Final = (*_EDGE, 404, 405, 408, 410, 413, 429, 502, 504)
_HEADERS: Final[Mapping[str, Any]] = {
    "X-Wardwright-Receipt-Id": {"schema": {"type": "string"}, "description": "The receipt of this exchange."},
    "X-Wardwright-Selected-Model": {"schema": {"type": "string"}, "description": "The target that answered."},
    "X-Wardwright-Session-Id": {"schema": {"type": "string"}, "description": "The session it belongs to."},
}
_CALLER_HEADERS: Final = ("Session-Id", "Run-Id", "Agent-Id", "User-Id", "Application-Id", "Tenant-Id", "Approval")
_WORD: Final[Schema] = {"type": "string", "pattern": r"^[\x21-\x7e]+$", "maxLength": 256}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The whole document. Made once; treat it as read-only."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route)
    paths.update(_further())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wardwright",
            "version": _version(),
            "description": "Governs the tool calls of models by one policy plan.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "admin": {"type": "http", "scheme": "bearer", "description": "The token of an operator."},
                "key": {"type": "http", "scheme": "bearer", "description": "The key of a caller."},
                "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["type", "message"],
                            "properties": {
                                "type": {"type": "string"},
                                "code": {"type": "string"},
                                "message": {"type": "string", "description": "What a person can do."},
                                "rule_id": {"type": "string"},
                                "receipt_id": {"type": "string"},
                                "blocked_tools": {"type": "array", "items": {"type": "string"}},
                                "problems": {"type": "array", "items": {"type": "object"}},
                            },
                        }
                    },
                },
                "RpcError": {
                    "type": "object",
                    "required": ["jsonrpc", "id", "error"],
                    "properties": {
                        "jsonrpc": {"const": "2.0"},
                        "error": {
                            "type": "object",
                            "required": ["code", "message"],
                            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
                        },
                    },
                },
            },
        },
    }


def _version() -> str:
    try:
        return version("weakincentives")
    except PackageNotFoundError:
        return "0"


def _path(route: Route) -> str:
    return route.path.replace("*}", "}")


def _operation(route: Route) -> dict[str, Any]:
    lines = route.path.endswith("/export")
    statuses = [*_EDGE, 405, *route.errors]
    if route.body is not None:
        statuses += [413, 415]
    if route.heavy:
        statuses.append(429)
    found: dict[str, Any] = {
        "operationId": _name(route.method, _path(route)),
        "summary": route.summary,
        "description": f"Needs the role {route.role}.",
        "tags": ["operators"],
        "security": [{"admin": []}],
        "parameters": [*_in_path(_path(route)), *(_query(one) for one in route.query)],
        "responses": {
            "200": {
                "description": route.summary,
                "content": {_LINES if lines else _JSON: {"schema": dict(route.answer)}},
            },
            **_errors(statuses),
        },
    }
    if route.body is not None:
        found["requestBody"] = {
            "required": bool(route.body.get("required")),
            "content": {_JSON: {"schema": dict(route.body)}},
        }
    return found


def _name(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1").replace("/wardwright", ""))
    return "_".join([method.lower(), *words])


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 512},
        }
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query(parameter: Parameter) -> dict[str, Any]:
    schema = dict(parameter.schema)
    if parameter.repeated:
        schema = {"type": "array", "items": schema}
    elif parameter.default not in (None, ""):
        schema["default"] = parameter.default
    found: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "schema": schema,
    }
    if parameter.description:
        found["description"] = parameter.description
    return found


def _errors(statuses: Sequence[int], schema: Schema = _ERROR) -> dict[str, Any]:
    return {
        str(status): {
            "description": _TOLD.get(status, "Refused"),
            "content": {_JSON: {"schema": dict(schema)}},
        }
        for status in sorted(set(statuses))
    }


def _plain(summary: str, schema: Schema, *, kind: str = _JSON, also: Sequence[int] = ()) -> dict[str, Any]:
    return {
        "operationId": _name("get", summary.split(":")[0].lower().replace(" ", "_")),
        "summary": summary,
        "tags": ["service"],
        "responses": {
            "200": {"description": summary, "content": {kind: {"schema": dict(schema)}}},
            **_errors([*_EDGE, 405, *also]),
        },
    }


def _further() -> dict[str, dict[str, Any]]:
    """What is not the operators'."""
    status = {"type": "object", "required": ["status"]}
    ready = _plain("Ready: the store answers and a plan is in force", status)
    ready["responses"]["503"] = {"description": "Not ready", "content": {_JSON: {"schema": status}}}
    models = _plain("Usable models: those this caller may use", {"type": "object", "required": ["object", "data"]})
    models["security"] = _KEYS
    return {
        "/healthz": {"get": _plain("Alive: the process answers", status)},
        "/readyz": {"get": ready},
        "/metrics": {"get": _plain("Metrics: for Prometheus", {"type": "string"}, kind="text/plain")},
        "/openapi.json": {"get": _plain("Document: this one", {"type": "object", "required": ["openapi", "paths"]})},
        "/v1/models": {"get": models},
        "/v1/chat/completions": {"post": _model("OpenAI Chat Completions", ("model", "messages"))},
        "/v1/responses": {"post": _model("OpenAI Responses", ("model", "input"))},
        "/v1/messages": {"post": _model("Anthropic Messages", ("model", "messages", "max_tokens"))},
        "/mcp/{server}": _mcp(),
    }


_KEYS: Final[list[dict[str, list[str]]]] = [{"key": []}, {"x_api_key": []}, {}]
"""By either header; by none on this machine, unless the config says otherwise."""


def _model(summary: str, required: Sequence[str]) -> dict[str, Any]:
    return {
        "operationId": _name("post", summary.lower().replace(" ", "_")),
        "summary": f"{summary}, governed",
        "tags": ["models"],
        "security": _KEYS,
        "parameters": [
            {"name": f"X-Wardwright-{name}", "in": "header", "required": False, "schema": dict(_WORD)}
            for name in _CALLER_HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": {
                _JSON: {
                    "schema": {
                        "type": "object",
                        "required": list(required),
                        "properties": {"model": {"type": "string"}, "stream": {"type": "boolean"}},
                    }
                }
            },
        },
        "responses": {
            "200": {
                "description": "The reply, without the calls that policy denied",
                "headers": dict(_HEADERS),
                "content": {_JSON: {"schema": {"type": "object"}}, _EVENTS: {"schema": {}}},
            },
            **_errors(_MODEL_ERRORS),
        },
    }


def _mcp() -> dict[str, Any]:
    message: Schema = {
        "type": ["object", "array"],
        "description": "A JSON-RPC message, or several.",
    }
    answers = _errors([*_EDGE, 404, 405, 408, 413, 415, 429, 502], _RPC_ERROR)
    return {
        "post": {
            "operationId": "post_mcp",
            "summary": "A proxied MCP server: tools are listed and called as policy lets them",
            "description": "Streamable HTTP. What policy refuses is an error of JSON-RPC, or a result with `isError`, over 200.",
            "tags": ["mcp"],
            "security": _KEYS,
            "parameters": _in_path("/mcp/{server}"),
            "requestBody": {"required": True, "content": {_JSON: {"schema": message}}},
            "responses": {
                "200": {
                    "description": "The answer",
                    "content": {_JSON: {"schema": message}, _EVENTS: {"schema": {}}},
                },
                "202": {"description": "A notification was taken"},
                **answers,
            },
        },
        "delete": {
            "operationId": "delete_mcp",
            "summary": "End the server's session",
            "tags": ["mcp"],
            "security": _KEYS,
            "parameters": _in_path("/mcp/{server}"),
            "responses": {"204": {"description": "Ended"}, **answers},
        },
    }
