"""The pages of the area Models: what each model may reach (G44), and the switches of its server tools.

Shows what the admin API tells of a model: never the source of a snippet nor the path of a file.
"""

from __future__ import annotations

from typing import Final

from wardwright.http.visit import Answer, Page, Visit


def show_models(visit: Visit) -> Answer:
    models = visit.ask("GET", "/v1/wardwright/models")["models"]
    for model in models:
        able = [target for target in model["targets"] if target["tools"]]
        model["able"] = able
        enabled = [tool for tool in model["server_tools"] if tool["enabled"]]
        # Guaranteed: whichever target answers has them. Conditional: only some targets do.
        model["guaranteed"] = len(enabled) if len(able) == len(model["targets"]) else 0
        model["conditional"] = len(enabled) if 0 < len(able) < len(model["targets"]) else 0
    return visit.page("models.html", models=models)


def switch(visit: Visit) -> Answer:
    model, tool = visit.form.get("model", ""), visit.form.get("tool", "")
    enabled = visit.form.get("enabled") == "true"
    made = visit.ask(
        "PUT",
        f"/v1/wardwright/models/{model}/tools/{tool}",
        body={"enabled": enabled, "note": visit.form.get("note", "")},
    )
    word = "on" if enabled else "off"
    return visit.redirect("/models", f"{tool} of {model} is {word}. Recorded as {made['receipt_id']}.")


PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/models", "viewer", show_models),
    Page("POST", "/models/switch", "operator", switch),
)
