"""Texts of a prompt that are changed without changing the program: bodies, tool and parameter descriptions.

Decides what an override may touch and when it is out of date: each carries the hash of the text it replaces. Never
applies one to a text that has changed since, or that does not accept overrides.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final, Literal, Protocol

from .. import serde
from ..errors import PromptValidationError
from ..frozen import frozen
from .section import PlacedSection, placeholders_of, refuse_unknown_placeholders
from .tool import Tool
from .visibility import SectionPath

_logger = logging.getLogger(__name__)

LATEST: Final = "latest"

_NO_WORDS: Final[Mapping[str, str]] = {}
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def text_hash(text: str) -> str:
    """The hash by which an override names the text it replaces."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@frozen
class TextOverride:
    """One text in place of another."""

    expected_hash: str
    """Hash of the text this was written for; another text is left alone."""
    text: str
    """What to show instead."""


@frozen
class ToolOverride:
    """Other words for one tool."""

    description: TextOverride | None = None
    params: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])
    """Descriptions of its parameters, by name."""


@frozen
class PromptOverride:
    """All overrides of one prompt under one tag, as a store keeps them."""

    ns: str
    key: str
    tag: str = LATEST
    sections: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])
    """Section bodies, by path (`guide/style`)."""
    tools: Mapping[str, ToolOverride] = field(default_factory=dict[str, ToolOverride])
    version: Literal[1] = 1


class PromptOverridesStore(Protocol):
    """Where overrides are kept. `resolve` is asked at each rendering."""

    def resolve(self, ns: str, key: str, tag: str) -> PromptOverride | None:
        """The overrides of a prompt under a tag, or None."""
        ...

    def save(self, override: PromptOverride) -> None:
        """Keep these instead of what was kept under the same names."""
        ...

    def delete(self, ns: str, key: str, tag: str) -> None:
        """Forget them; nothing happens when there are none."""
        ...


class PromptTexts:
    """The texts of one prompt that could be overridden. Made by `Prompt.texts`."""

    def __init__(
        self,
        ns: str | None,
        key: str | None,
        sections: Mapping[str, PlacedSection],
        tools: Mapping[str, Tool[Any, Any]],
    ) -> None:
        if not key:
            raise PromptValidationError(
                "Overrides are kept under the prompt's names. Give the PromptTemplate a key= (and ns=)."
            )
        self.ns = ns or "default"
        self.key = key
        self.sections = sections
        self.tools = tools

    def override(
        self,
        *,
        tag: str = LATEST,
        sections: Mapping[str, str] | None = None,
        tools: Mapping[str, str] | None = None,
        params: Mapping[str, Mapping[str, str]] | None = None,
    ) -> PromptOverride:
        """An override of the texts as they are now: bodies by section path, descriptions by tool, and by tool and
        parameter. Refuses what does not exist or does not accept overrides."""
        descriptions, fields = tools or {}, params or {}
        bodies = {name: self._of_body(name, text) for name, text in (sections or {}).items()}
        words: dict[str, ToolOverride] = {}
        for name in (*descriptions, *(name for name in fields if name not in descriptions)):
            words[name] = ToolOverride(
                self._of_description(name, descriptions[name]) if name in descriptions else None,
                {word: self._of_param(name, word, text) for word, text in fields.get(name, _NO_WORDS).items()},
            )
        return PromptOverride(self.ns, self.key, tag, bodies, words)

    def apply(self, override: PromptOverride) -> AppliedOverrides:
        """What the override changes now. What is out of date or closed to overrides is left as it is, with a warning."""
        bodies: dict[SectionPath, str] = {}
        for name, change in override.sections.items():
            original = self._body(name)
            if isinstance(original, _Closed):
                self._ignore(override, f"section '{name}'", original.why)
            elif self._is_current(override, f"section '{name}'", original, change):
                bodies[self.sections[name].path] = self._checked(name, change.text)
        tools: dict[str, Tool[Any, Any]] = {}
        for name, words in override.tools.items():
            tool = self._tool(name)
            if isinstance(tool, _Closed):
                self._ignore(override, f"tool '{name}'", tool.why)
            else:
                tools[name] = self._reworded(override, tool, words)
        return AppliedOverrides(bodies, tools)

    def _reworded(self, override: PromptOverride, tool: Tool[Any, Any], words: ToolOverride) -> Tool[Any, Any]:
        description = tool.description
        change = words.description
        if change is not None and self._is_current(override, f"tool '{tool.name}'", description, change):
            description = change.text
        known = _param_descriptions(tool) if words.params else {}
        params: dict[str, str] = {}
        for word, change in words.params.items():
            if word not in known:
                self._ignore(override, f"parameter '{word}' of tool '{tool.name}'", "does not exist")
            elif self._is_current(override, f"parameter '{word}' of tool '{tool.name}'", known[word], change):
                params[word] = change.text
        return tool.with_description(description, param_descriptions=params)

    def _body(self, name: str) -> str | _Closed:
        placed = self.sections.get(name)
        if placed is None:
            return _Closed("does not exist")
        if not placed.section.accepts_overrides:
            return _Closed("does not accept overrides")
        if placed.section.template is None:
            return _Closed("computes its text")
        return placed.section.template

    def _tool(self, name: str) -> Tool[Any, Any] | _Closed:
        tool = self.tools.get(name)
        if tool is None:
            return _Closed("does not exist")
        return tool if tool.accepts_overrides else _Closed("does not accept overrides")

    def _of_body(self, name: str, text: str) -> TextOverride:
        original = self._body(name)
        if isinstance(original, _Closed):
            raise PromptValidationError(f"Cannot override section '{name}': it {original.why}.")
        return TextOverride(text_hash(original), self._checked(name, text))

    def _of_description(self, name: str, text: str) -> TextOverride:
        tool = self._accepting(name)
        return TextOverride(text_hash(tool.description), tool.with_description(text).description)

    def _of_param(self, name: str, word: str, text: str) -> TextOverride:
        known = _param_descriptions(self._accepting(name))
        if word not in known:
            raise PromptValidationError(f"Cannot override parameter '{word}' of tool '{name}': it does not exist.")
        return TextOverride(text_hash(known[word]), text)

    def _accepting(self, name: str) -> Tool[Any, Any]:
        tool = self._tool(name)
        if isinstance(tool, _Closed):
            raise PromptValidationError(f"Cannot override tool '{name}': it {tool.why}.")
        return tool

    def _checked(self, name: str, text: str) -> str:
        """The new body, if its placeholders are among those the section can fill."""
        section = self.sections[name].section
        if section.params_type is not None:
            refuse_unknown_placeholders(placeholders_of(text), section.params_type, f"Override of section '{name}'")
            return text
        unknown = [word for word in placeholders_of(text) if word not in section.placeholders]
        if unknown:
            raise PromptValidationError(
                f"Override of section '{name}': unknown placeholder {', '.join(f'${{{word}}}' for word in unknown)}. "
                f"The section has: {', '.join(section.placeholders) or 'none'}."
            )
        return text

    def _is_current(self, override: PromptOverride, what: str, original: str, change: TextOverride) -> bool:
        if change.expected_hash == text_hash(original):
            return True
        self._ignore(override, what, "has changed since the override was written")
        return False

    def _ignore(self, override: PromptOverride, what: str, why: str) -> None:
        _logger.warning("Override %s/%s tag %s ignored: %s %s", override.ns, override.key, override.tag, what, why)


@frozen
class AppliedOverrides:
    """What one rendering shows instead: bodies by section path, tools by name."""

    bodies: Mapping[SectionPath, str] = field(default_factory=dict[SectionPath, str])
    tools: Mapping[str, Tool[Any, Any]] = field(default_factory=dict[str, Tool[Any, Any]])


class LocalPromptOverridesStore:
    """Overrides as JSON files below one folder: `<ns>/<key>/<tag>.json`. Files may be edited by hand."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)

    def resolve(self, ns: str, key: str, tag: str) -> PromptOverride | None:
        path = self._path(ns, key, tag)
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            override = serde.parse_json(PromptOverride, raw)
        except serde.ParseError as error:
            problems = "; ".join(f"{where}: {what}" for where, what in error.details.items())
            raise PromptValidationError(f"The overrides file {path} cannot be used. {problems}") from error
        if (override.ns, override.key, override.tag) != (ns, key, tag):
            raise PromptValidationError(
                f"The overrides file {path} cannot be used. It says it is for "
                f"{override.ns}/{override.key} tag {override.tag}, but lies where {ns}/{key} tag {tag} belongs."
            )
        return override

    def save(self, override: PromptOverride) -> None:
        path = self._path(override.ns, override.key, override.tag)
        text = json.dumps(serde.dump(override), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        # A reader sees the old file or the new one, never half of either.
        draft = os.path.join(folder, f".{name}.{os.urandom(6).hex()}")
        try:
            with open(draft, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def delete(self, ns: str, key: str, tag: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(ns, key, tag))

    def _path(self, ns: str, key: str, tag: str) -> str:
        for what, word in (("ns", ns), ("key", key), ("tag", tag)):
            if _WORD.fullmatch(word) is None:
                raise PromptValidationError(
                    f"Overrides cannot be kept under {what} {word!r}: it must match {_WORD.pattern}, as part of a file name."
                )
        return os.path.join(self._root, ns, key, f"{tag}.json")


@frozen
class _Closed:
    """Why a text cannot be overridden."""

    why: str


def _param_descriptions(tool: Tool[Any, Any]) -> dict[str, str]:
    """The description of each parameter, as the tool's schema gives it to the model; empty where there is none."""
    properties: Mapping[str, Any] = tool.schema().get("properties", {})
    return {name: str(rules.get("description", "")) for name, rules in properties.items()}
