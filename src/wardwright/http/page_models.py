"""The pages of the area Models: what each model may reach (G44), and the switches of its server tools.

Shows what the admin API tells of a model: never the source of a snippet nor the path of a file.
"""

from __future__ import annotations

from typing import Any, Final

from wardwright.http.visit import Answer, Page, Visit
from wardwright.projection import project_model

_ADMIN: Final = "/v1/wardwright/models"


def show_models(visit: Visit) -> Answer:
    return visit.page("models.html", models=[_model(visit, one) for one in visit.ask("GET", _ADMIN)["models"]])


def _model(visit: Visit, model: dict[str, Any]) -> dict[str, Any]:
    part = visit.gateway.plan.models.get(model["model_id"])
    known = {tool["name"] for tool in model["server_tools"]}
    return {
        **model,
        "able": [target["model"] for target in model["targets"] if target["tools"]],
        # A module or a remote server names its tools only when it lives; what was switched off by such a name is shown too.
        "also_off": sorted(visit.gateway.overlay.off(model["model_id"]) - known),
        "named_later": any(tool["engine"] in ("mcp", "module") for tool in model["server_tools"]),
        "regions": [] if part is None else project_model(part).regions,
    }


def switch(visit: Visit) -> Answer:
    form = visit.form
    model, tool = form.get("model", ""), form.get("tool", "")
    enabled = form.get("enabled") == "true"
    made = visit.ask("PUT", f"{_ADMIN}/{model}/tools/{tool}", body={"enabled": enabled, "note": form.get("note", "")})
    word = "on" if enabled else "off"
    return visit.redirect("/models", f"{tool} of {model} is {word}. Recorded as {made['receipt_id']}.")


PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/models", "viewer", show_models),
    Page("POST", "/models/switch", "operator", switch),
)
