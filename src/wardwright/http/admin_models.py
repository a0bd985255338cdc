"""Models and stops for operators: what a model may reach (G44), its artifact, switches of server tools, emergency stops.

A model's view never tells the source of a snippet nor the path of a file; only its artifact does, to operators alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from wardwright import receipts
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.http.admin_plans import PROBLEM, activate, current_epoch
from wardwright.http.route import (
    NOTE,
    TEXT,
    WHOLE,
    Ask,
    BadRequest,
    Gateway,
    NotFound,
    Parameter,
    Route,
    Schema,
    object_schema,
)
from wardwright.mediation import advertise
from wardwright.overlay import STOP_KINDS, Stop, StopKind

_STRING: Final[Schema] = {"type": "string"}
_TENANT: Final[Schema] = {
    "type": "string",
    "maxLength": 512,
    "description": "Only this tenant's; everybody's if not given.",
}


# models


def list_models(ask: Ask) -> Any:
    gateway = ask.gateway
    # The plan may be replaced while it is read: what is in both is told.
    return {"models": [_model(gateway, name) for name in gateway.plan.models if name in gateway.models]}


def show_model(ask: Ask) -> Any:
    return _model(ask.gateway, _known(ask))


def _known(ask: Ask) -> str:
    model = ask.path["model_id"]
    if model not in ask.gateway.plan.models:
        raise NotFound(f"There is no model '{model[:80]}'. Known: {', '.join(ask.gateway.plan.models)}.")
    return model


def _model(gateway: Gateway, model: str) -> dict[str, Any]:
    part, settings = gateway.plan.models.get(model), gateway.models.get(model)
    if part is None or settings is None:
        raise NotFound(f"There is no model '{model[:80]}' any more.")
    off = gateway.overlay.off(model)
    names = [tool.name for tool in settings.server_tools if tool.name not in off]
    shown = advertise(settings.advertisement, names, [target.tools for target in part.targets])
    return {
        "model_id": model,
        "plan_hash": part.plan_hash,
        "rules": len(receipts.rules_of(part)),
        "require_session": part.require_session,
        "targets": [
            {
                "model": target.model,
                "provider": target.provider,
                "context_window": target.context_window,
                "tools": target.tools,
            }
            for target in part.targets
        ],
        "server_tools": [
            {
                "name": tool.name,
                "enabled": tool.name not in off,
                "engine": tool.engine,
                "source_class": tool.source_class,
                "description": tool.description,
                "parameters": _keys(tool.parameters),
                "input": sorted(tool.input),
                "limits": {"timeout_ms": tool.limits.timeout_ms, "output_chars": tool.limits.output_chars},
            }
            for tool in settings.server_tools
        ],
        "advertisement": shown.record(),
        "mediation": {"mode": settings.mediation.mode, "rules": len(settings.mediation.rules)},
    }


def _keys(parameters: Mapping[str, Any] | None) -> list[str]:
    properties: Any = {} if parameters is None else parameters.get("properties", {})
    return sorted(properties) if isinstance(properties, Mapping) else []  # pyright: ignore[reportUnknownArgumentType]


def switch_tool(ask: Ask) -> Any:
    model, tool = _known(ask), ask.path["tool"]
    settings = ask.gateway.models.get(model)
    tools = () if settings is None else settings.server_tools
    # A module or a remote server names its tools only when it lives: then the operator's word counts.
    if not any(one.name == tool or one.engine in ("mcp", "module") for one in tools):
        raise NotFound(f"'{model}' has no server tool '{tool[:80]}'.")
    enabled: bool = ask.body["enabled"]
    receipt_id = ask.gateway.overlay.set_switch(
        model, tool, enabled, ask.operator, ask.body.get("note", ""), ask.gateway.now_ms()
    )
    return {"model_id": model, "tool": tool, "enabled": enabled, "receipt_id": receipt_id}


# artifacts


def show_artifact(ask: Ask) -> Any:
    model = _known(ask)
    artifact = _split(ask.gateway)[1].get(model)
    if artifact is None:
        raise NotFound(f"There is no model '{model[:80]}' any more.")
    return {
        "model_id": model,
        "epoch": current_epoch(ask.gateway),
        "artifact": artifact,
        "source": _yaml(artifact),
    }


def put_artifact(ask: Ask) -> Any:
    """Replaces one model of the deployment; everything else of it stays. Comments of the file are not kept."""
    model = ask.path["model_id"]
    given = parse_config(ask.body["source"], "artifact")
    if any(problem.severity == "error" for problem in given.problems):
        # Told where they stand in what was sent, not in the whole deployment.
        raise ConfigError(given.problems)
    if given.deployment or len(given.models) != 1 or "models" in given.root.items():
        raise BadRequest("Send one model artifact, without the sections of a deployment.")
    artifact: dict[str, Any] = given.models[0].node.plain()
    if artifact.setdefault("model_id", model) != model:
        raise BadRequest(f"The artifact is of '{artifact['model_id']}', the address names '{model[:80]}'.")
    deployment, models = _split(ask.gateway)
    named = model in models
    models[model] = artifact
    whole: dict[str, Any] = {**deployment, "models": list(models.values())}
    made = activate(
        ask, _yaml(whole).encode(), int(ask.body["expected_epoch"]), "put_artifact", {"model": model, "new": not named}
    )
    return {"model_id": model, "epoch": made.epoch, "plan_hash": made.plan_hash, "at_ms": made.at_ms}


def _split(gateway: Gateway) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The deployment's own sections, and its artifacts by model."""
    config = parse_config(gateway.source.decode("utf-8", "surrogatepass"), "plan")
    deployment = {name: node.plain() for name, node in config.deployment.items() if name != "models"}
    models: dict[str, dict[str, Any]] = {}
    for one in config.models:
        models[one.model_id] = {"model_id": one.model_id, **one.node.plain()}
    return deployment, models


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)


# stops


def list_stops(ask: Ask) -> Any:
    gateway = ask.gateway
    gateway.overlay.refresh()
    return {"stops": [_stop(gateway, stop) for stop in gateway.overlay.stops()]}


def _stop(gateway: Gateway, stop: Stop) -> dict[str, Any]:
    receipt_id = gateway.overlay.stop_receipt(stop, gateway.now_ms())
    stored = gateway.store.receipt(receipt_id) if receipt_id else None
    told: Mapping[str, Any] = {} if stored is None or not stored.row.body else receipts.load(stored.row.body)
    return {
        "kind": stop.kind,
        "name": stop.name,
        "tenant": stop.tenant,
        "receipt_id": receipt_id,
        "operator": told.get("caller", {}).get("principal", ""),
        "note": told.get("admin", {}).get("details", {}).get("note", ""),
        "at_ms": told.get("at_ms", 0),
    }


def set_stop(ask: Ask) -> Any:
    return _changed(ask, ask.body, ask.gateway.overlay.set_stop)


def clear_stop(ask: Ask) -> Any:
    return _changed(ask, ask.query, ask.gateway.overlay.clear_stop)


def _changed(ask: Ask, given: Mapping[str, Any], change: Any) -> dict[str, Any]:
    kind: StopKind = given["kind"]
    stop = Stop(kind, given["name"], given.get("tenant"))
    receipt_id: str = change(stop, ask.operator, given.get("note") or "", ask.gateway.now_ms())
    return {"kind": stop.kind, "name": stop.name, "tenant": stop.tenant, "receipt_id": receipt_id}


_KIND: Final[Schema] = {"type": "string", "enum": list(STOP_KINDS)}
_CHANGED: Final = object_schema(
    ("kind", "name", "tenant", "receipt_id"),
    kind=_KIND,
    name=_STRING,
    tenant={"type": ["string", "null"]},
    receipt_id=_STRING,
)
_EXPECTED: Final[Schema] = {**WHOLE, "description": "The epoch that was looked at; another one since is a conflict."}
_MODEL: Final[Schema] = {
    "type": "object",
    "required": ["model_id", "plan_hash", "rules", "require_session", "targets", "server_tools", "mediation"],
    "properties": {
        "advertisement": {
            "type": "object",
            "description": "Of the server tools that are on: how many every target has, and how many only some.",
        }
    },
}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/wardwright/models",
        "viewer",
        "Every model: targets, server tools and their switches, mediation",
        list_models,
        object_schema(("models",), models={"type": "array", "items": _MODEL}),
    ),
    Route(
        "GET",
        "/v1/wardwright/models/{model_id*}/artifact",
        "operator",
        "The whole artifact of a model",
        show_artifact,
        object_schema(
            ("model_id", "epoch", "artifact", "source"),
            model_id=_STRING,
            epoch=WHOLE,
            artifact={"type": "object"},
            source=_STRING,
        ),
        errors=(404,),
    ),
    Route(
        "PUT",
        "/v1/wardwright/models/{model_id*}/artifact",
        "operator",
        "Replace the artifact of a model, or add one",
        put_artifact,
        object_schema(
            ("model_id", "epoch", "plan_hash", "at_ms"),
            model_id=_STRING,
            epoch=WHOLE,
            plan_hash=_STRING,
            at_ms={"type": "integer"},
            problem=PROBLEM,
        ),
        body=object_schema(
            ("source", "expected_epoch"),
            source={"type": "string", "minLength": 1, "description": "The artifact as YAML."},
            expected_epoch=_EXPECTED,
            note=NOTE,
        ),
        activates=True,
        errors=(409, 422),
    ),
    Route(
        "PUT",
        "/v1/wardwright/models/{model_id*}/tools/{tool}",
        "operator",
        "Switch a server tool of a model on or off, from the next request on",
        switch_tool,
        object_schema(
            ("model_id", "tool", "enabled", "receipt_id"),
            model_id=_STRING,
            tool=_STRING,
            enabled={"type": "boolean"},
            receipt_id=_STRING,
        ),
        body=object_schema(("enabled",), enabled={"type": "boolean"}, note=NOTE),
        errors=(404, 409),
    ),
    Route(
        "GET",
        "/v1/wardwright/models/{model_id*}",
        "viewer",
        "One model",
        show_model,
        _MODEL,
        errors=(404,),
    ),
    Route(
        "GET",
        "/v1/wardwright/stops",
        "viewer",
        "Emergency stops: who set them, when and why",
        list_stops,
        object_schema(("stops",), stops={"type": "array", "items": {"type": "object"}}),
    ),
    Route(
        "POST",
        "/v1/wardwright/stops",
        "operator",
        "Stop a session, a tool or a principal, in every process",
        set_stop,
        _CHANGED,
        body=object_schema(("kind", "name"), kind=_KIND, name=TEXT, tenant=_TENANT, note=NOTE),
        errors=(409,),
    ),
    Route(
        "DELETE",
        "/v1/wardwright/stops",
        "operator",
        "Release an emergency stop",
        clear_stop,
        _CHANGED,
        query=(
            Parameter("kind", _KIND, required=True),
            Parameter("name", TEXT, required=True),
            Parameter("tenant", _TENANT),
            Parameter("note", NOTE),
        ),
        errors=(404,),
    ),
)
