"""A deploy pipeline whose order is a policy, not a hope: build, test, staging, then production once a person agrees.

Without a key the model follows a script that tries to skip steps; with OPENAI_API_KEY, or OPENAI_BASE_URL for a server of
your own, the same pipeline runs with a real one. Also: wink run examples/deploy_pipeline.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models import model
from narrator import Narrator

from weakincentives.errors import ToolValidationError
from weakincentives.prompt import (
    ApprovalPolicy,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SequentialDependencyPolicy,
    ToolContext,
    tool,
)
from weakincentives.runtime import EventBus, MainLoop, ToolCall, pending_approvals, resume


@dataclass(frozen=True)
class Release:
    """What is to be released."""

    version: str = "1.4"


@dataclass(frozen=True)
class Artifact:
    """State of the session: what was built, and whether its tests passed."""

    version: str
    tested: bool = False


@dataclass(frozen=True)
class Deployed:
    """State of the session: what runs where."""

    version: str
    environment: str


@tool
def build(version: str, context: ToolContext) -> str:
    """Build a version of the app."""
    context.session[Artifact].seed(Artifact(version))
    return f"Built app-{version}"


@tool
def test(context: ToolContext) -> str:
    """Test what was built."""
    artifact = context.session[Artifact].latest()
    assert artifact is not None, "the order of the tools is a policy"
    context.session[Artifact].seed(Artifact(artifact.version, tested=True))
    return f"app-{artifact.version}: 212 tests passed"


@tool
def deploy_staging(version: str, context: ToolContext) -> str:
    """Deploy a version to staging."""
    return _deploy(version, "staging", context)


@tool
def deploy_production(version: str, context: ToolContext) -> str:
    """Deploy a version to production, where customers are."""
    return _deploy(version, "production", context)


def _deploy(version: str, environment: Literal["staging", "production"], context: ToolContext) -> str:
    context.session[Deployed].append(Deployed(version, environment))
    artifact = context.session[Artifact].latest()
    if artifact is None or artifact.version != version:  # too late to notice: the entry above is taken back
        found = "nothing" if artifact is None else artifact.version
        raise ToolValidationError(f"Cannot deploy {version}: {found} was built. Deploy that, or build {version} first.")
    return f"app-{version} runs in {environment}"


PIPELINE = MarkdownSection[Release](
    title="Release",
    template=(
        "Release version ${version} of the app: build it, test it, deploy it to staging, then to production.\n\n"
        "A call that waits for an approval is not lost: say in your answer that it waits."
    ),
    tools=[build, test, deploy_staging, deploy_production],
    policies=[
        SequentialDependencyPolicy(
            {
                "test": ["build"],
                "deploy_staging": ["build", "test"],
                "deploy_production": ["build", "test", "deploy_staging"],
            }
        ),
        ApprovalPolicy(tools=["deploy_production"]),
    ],
)


class Pipeline(MainLoop[Release, str]):
    """Releases one version."""

    def prepare(self, request: Release) -> Prompt[str]:
        return Prompt(PromptTemplate[str](sections=[PIPELINE])).bind(request)


SCRIPT = [
    ToolCall("deploy_production", {"version": "1.4"}),  # straight to the customers
    ToolCall("build", {"version": "1.4"}),
    ToolCall("deploy_staging", {"version": "1.4"}),  # untested
    ToolCall("test"),
    ToolCall("deploy_staging", {"version": "1.5"}),  # tested, but another version
    ToolCall("deploy_staging", {"version": "1.4"}),
    ToolCall("deploy_production", {"version": "1.4"}),
    "1.4 is on staging; production waits for an approval.",
]

bus = EventBus()
loop = Pipeline(adapter=model(SCRIPT), bus=bus)


def main() -> None:
    say = Narrator(bus)
    say.title("A deploy pipeline: test before deploy, whatever the model thinks")
    request = Release()
    prompt = loop.prepare(request)
    response, session = loop.execute(request)
    say.answer(response.text)
    for waiting in pending_approvals(session):
        say.title(f"A person approves: {waiting.tool_name}")
        resume(waiting, by="Ann", session=session, prompt=prompt)
    say.note(f"deployed: {', '.join(f'{item.version} in {item.environment}' for item in session[Deployed].all())}")
    say.summary()


if __name__ == "__main__":
    main()
