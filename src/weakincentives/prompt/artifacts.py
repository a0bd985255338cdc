"""Long outputs: the model reads the beginning, the rest waits in the session to be read by handle."""

from __future__ import annotations

from dataclasses import dataclass

from ..session import Session, keyed_slice


@keyed_slice(lambda artifact: artifact.handle)
@dataclass(frozen=True, slots=True)
class Artifact:
    """The whole output of one call. Rolled back with it."""

    handle: str
    text: str


def spill(session: Session, call_id: str, text: str, limit: int) -> str:
    """Keep the whole text under a handle and give back what fits, with word of how to read on."""
    session[Artifact].append(Artifact(call_id, text))
    return (
        f"{text[:limit]}\n\n[output cut: {limit} of {len(text)} characters shown. "
        f'Read on with read_artifact(handle="{call_id}", offset={limit})]'
    )
