"""What a section is: text, tools, policies and children that belong together, and its place in a prompt.

Decides keys, params types, placeholders and how a section's own functions are called. Never renders a whole prompt.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from textwrap import dedent
from typing import Any, Generic, cast, get_args, get_origin

from typing_extensions import TypeVar

from ..errors import PromptEvaluationError, PromptValidationError
from ..session import Session
from .feedback import Feedback, as_feedback
from .guard import Guard, refuse_non_guard
from .policies import ToolPolicy
from .tool import Tool
from .visibility import SectionPath, SectionVisibility

ParamsT = TypeVar("ParamsT", default=None)

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PLACEHOLDER = re.compile(r"\$\{([^\W\d]\w*)\}")


class Section(Generic[ParamsT]):
    """Instructions, tools and policies as one thing. Made by the author of a prompt or of a tool suite; holds no run
    state, so one section may stand in many prompts.

    A suite is a subclass: it passes its tools and policies on, writes its text in `render_body`, and says what it
    brings along in `resources` and `install`.
    """

    template: str | None = None
    """The text with `${name}` placeholders, or None when `render_body` computes it; only a template can be overridden."""

    def __init__(
        self,
        *,
        title: str | None = None,
        key: str | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        policies: Sequence[ToolPolicy] = (),
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        default_params: ParamsT | None = None,
        visibility: SectionVisibility | Callable[..., SectionVisibility] = SectionVisibility.FULL,
        summary: str | None = None,
        accepts_overrides: bool = True,
        feedback: Sequence[Guard | Feedback] = (),
        completion: Sequence[Guard] = (),
    ) -> None:
        self.title = title.strip() if title is not None and title.strip() else None
        self.key = key
        self.tools = tuple(tools)
        self.policies = tuple(policies)
        self.children = tuple(children)
        self.default_params = default_params
        self.summary = summary.strip() if summary is not None and summary.strip() else None
        self.accepts_overrides = accepts_overrides
        called = f"Section {key or title or type(self).__name__!r}"
        if self.title is not None and len(self.title.splitlines()) > 1:
            raise PromptValidationError(f"{called}: a title is one line.")
        if key is None:
            self.key = _slug(self.title or "")
        elif not isinstance(key, str) or _KEY.fullmatch(key) is None:
            raise PromptValidationError(
                f"{called}: the key must match {_KEY.pattern}: lower case letters and digits, then also . _ and -."
            )
        for policy in self.policies:
            refuse_non_policy(policy, called)
        self.feedback = tuple(as_feedback(given, called) for given in feedback)
        self.completion = tuple(completion)
        for guard in self.completion:
            refuse_non_guard(guard, called, "completion")
        self.enabled = None if enabled is None else Condition(enabled, "enabled", called)
        self.visibility = (
            visibility if isinstance(visibility, SectionVisibility) else Condition(visibility, "visibility", called)
        )
        if self.summary is None and self.visibility is not SectionVisibility.FULL:
            raise PromptValidationError(f"{called}: a section that can be shown as a summary needs summary=.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title or self.key or 'without title'}>"

    @property
    def params_type(self) -> type[ParamsT] | None:
        """The params dataclass of `Section[Params]`, or the type of the default params, or None."""
        found = type_argument(self, Section)
        if found is None and self.default_params is not None:
            return type(self.default_params)
        return cast("type[ParamsT] | None", found)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names the template asks for, in order of appearance."""
        return placeholders_of(self.template or "")

    def render_body(self, params: ParamsT, *, session: Session | None = None) -> str:  # noqa: ARG002
        """The text below the heading. Must be pure: the same params and session give the same text."""
        return "" if self.template is None else expand(self.template, params)

    def render_summary(self, params: ParamsT, *, session: Session | None = None) -> str:  # noqa: ARG002
        """What stands in place of a folded section. As pure as the body; only a section with `summary=` is ever folded."""
        return self.summary or ""

    def resources(self) -> Mapping[Any, object]:
        """What the section brings along: type to instance or `Binding`. Return the same instances each time: they live
        with the section, however many prompts are bound to it."""
        return {}

    def install(self, session: Session) -> None:
        """Register the reducers of the slices the section's tools use. Called often; doing it again changes nothing."""


class MarkdownSection(Section[ParamsT]):
    """A section whose text is a Markdown template: `${name}` is a field of the params, everything else is text.

    `MarkdownSection[Params]` takes its values from `Params` alone. Without the subscript each placeholder is the field
    of that name among all bound params; there must be exactly one.
    """

    def __init__(
        self,
        *,
        template: str = "",
        title: str | None = None,
        key: str | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        policies: Sequence[ToolPolicy] = (),
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        default_params: ParamsT | None = None,
        visibility: SectionVisibility | Callable[..., SectionVisibility] = SectionVisibility.FULL,
        summary: str | None = None,
        accepts_overrides: bool = True,
        feedback: Sequence[Guard | Feedback] = (),
        completion: Sequence[Guard] = (),
    ) -> None:
        super().__init__(
            title=title,
            key=key,
            tools=tools,
            policies=policies,
            children=children,
            enabled=enabled,
            default_params=default_params,
            visibility=visibility,
            summary=summary,
            accepts_overrides=accepts_overrides,
            feedback=feedback,
            completion=completion,
        )
        self.template: str | None = dedent(template).strip()


class Condition:
    """A section's function of its params and the session. How it wants to be called is found out once."""

    __slots__ = ("_fn", "_takes_params", "_takes_session", "_word")

    def __init__(self, fn: Callable[..., object], word: str, called: str) -> None:
        if not callable(fn):
            raise PromptValidationError(f"{called}: {word}= is not callable: {fn!r}.")
        if inspect.iscoroutinefunction(fn):
            raise PromptValidationError(f"{called}: {word}= cannot be async: rendering never waits.")
        self._fn = fn
        self._word = word
        self._takes_params, self._takes_session = _wishes(fn)

    def __call__(self, params: object, session: Session | None, path: SectionPath) -> object:
        try:
            given = (params,) if self._takes_params else ()
            return self._fn(*given, session=session) if self._takes_session else self._fn(*given)
        except Exception as error:
            # INVARIANT: a section that cannot say whether it is there stops the run, by name; it is never just shown.
            raise PromptEvaluationError(
                f"Section '{'/'.join(path)}': {self._word} raised {type(error).__name__}: {error}"
            ) from error


class PlacedSection:
    """A section at its place in one prompt. Made with the prompt, never changed; the same section may have many."""

    __slots__ = ("children", "has_tools", "level", "name", "parent", "path", "section")

    def __init__(self, section: Section[Any], key: str, parent: PlacedSection | None) -> None:
        self.section = section
        self.parent = parent
        self.path: SectionPath = (key,) if parent is None else (*parent.path, key)
        self.name = "/".join(self.path)
        # Only sections with a title count: a heading is never more than one step below the one above it.
        above = 0 if parent is None else parent.level
        self.level = above + 1 if section.title is not None else above
        self.children = place(section.children, parent=self)
        self.has_tools = bool(section.tools) or any(child.has_tools for child in self.children)

    @property
    def is_conditional(self) -> bool:
        """Whether this section can ever be absent or folded; if not, nobody needs to ask."""
        return self.section.enabled is not None or self.section.summary is not None

    def is_enabled(self, params: object, session: Session | None) -> bool:
        enabled = self.section.enabled
        return enabled is None or bool(enabled(params, session, self.path))

    def visibility(
        self, params: object, session: Session | None, overrides: Mapping[SectionPath, SectionVisibility]
    ) -> SectionVisibility:
        """How the section is shown: as the session says, else as it says itself. Without a summary, always in full."""
        section = self.section
        if section.summary is None:
            return SectionVisibility.FULL
        override = overrides.get(self.path)
        if override is not None:
            return override
        if isinstance(section.visibility, SectionVisibility):
            return section.visibility
        answer = section.visibility(params, session, self.path)
        if not isinstance(answer, SectionVisibility):
            raise PromptEvaluationError(
                f"Section '{self.name}': visibility must answer a SectionVisibility, got {answer!r}."
            )
        return answer

    def walk(self) -> Iterator[PlacedSection]:
        """This section and all below, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def lineage(self) -> tuple[PlacedSection, ...]:
        """The sections around this one, outermost first, and itself."""
        return (self,) if self.parent is None else (*self.parent.lineage(), self)


def is_fixed(placed: PlacedSection) -> bool:
    """Whether a section reads the same at every rendering: always shown, and nothing in its text is computed."""
    section = placed.section
    return (
        not placed.is_conditional
        and type(section).render_body is Section.render_body
        and "render_body" not in vars(section)
        and not section.placeholders
    )


def place(
    sections: Sequence[Section[Any]], *, parent: PlacedSection | None = None, after: Sequence[PlacedSection] = ()
) -> tuple[PlacedSection, ...]:
    """Give each section its place below `parent` and behind the siblings `after`; equal keys are refused."""
    where = "the prompt" if parent is None else f"section '{parent.name}'"
    placed = list(after)
    keys = {sibling.path[-1] for sibling in after}
    for section in sections:
        if not isinstance(section, Section):
            raise PromptValidationError(f"A section of {where} must be a Section, got {_shown(section)}.")
        key = section.key or f"section-{len(placed) + 1}"
        if key in keys:
            raise PromptValidationError(
                f"Two sections of {where} have the key '{key}'. Give one of them another key= or title."
            )
        keys.add(key)
        placed.append(PlacedSection(section, key, parent))
    return tuple(placed)


def check_contents(placed: PlacedSection) -> None:
    """Refuse tools, params types, default params and placeholders that cannot work."""
    section, called = placed.section, f"Section '{placed.name}'"
    for tool in section.tools:
        refuse_non_tool(tool, called)
    params_type = section.params_type
    if params_type is None:
        return
    if not isinstance(params_type, type) or not is_dataclass(params_type):
        raise PromptValidationError(f"{called}: its params type must be a dataclass, got {params_type!r}.")
    if section.default_params is not None and not isinstance(section.default_params, params_type):
        raise PromptValidationError(
            f"{called}: default_params must be a {params_type.__name__}, got {_shown(section.default_params)}."
        )
    refuse_unknown_placeholders(section.placeholders, params_type, called)


def refuse_unknown_placeholders(names: Sequence[str], params_type: type, called: str) -> None:
    known = field_names(params_type)
    unknown = [f"${{{name}}}" for name in names if name not in known]
    if unknown:
        raise PromptValidationError(
            f"{called}: unknown placeholder {', '.join(unknown)}. "
            f"Fields of {params_type.__name__}: {', '.join(known) or 'none'}."
        )


def refuse_non_tool(tool: object, called: str) -> None:
    if not isinstance(tool, Tool):
        raise PromptValidationError(f"{called}: tools= takes Tool objects, got {_shown(tool)}.")


def refuse_non_policy(policy: object, called: str) -> None:
    if isinstance(policy, type) or not callable(getattr(policy, "check", None)):
        raise PromptValidationError(f"{called}: a policy needs a check method, got {_shown(policy)}.")


def field_names(params_type: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(params_type))


def placeholders_of(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(template)))


def expand(template: str, params: object) -> str:
    """The template with each `${name}` replaced once; what a value contains is text, whatever it looks like."""
    return _PLACEHOLDER.sub(lambda found: str(getattr(params, found[1])), template)


def type_argument(instance: object, root: type) -> object:
    """What was written in the brackets of `root[...]` when the instance or its class was made, or None."""
    return _type_argument(type(instance), get_args(vars(instance).get("__orig_class__")), root)


def _type_argument(cls: type, given: tuple[object, ...], root: type) -> object:
    if cls is root:
        return None if not given or isinstance(given[0], TypeVar) or given[0] is type(None) else given[0]
    known = dict(zip(getattr(cls, "__parameters__", ()), given, strict=False))
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin: Any = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, root):
            return _type_argument(origin, tuple(known.get(arg, arg) for arg in get_args(base)), root)
    return None


def _wishes(fn: Callable[..., object]) -> tuple[bool, bool]:
    """Whether a function takes the params by position, and the session by keyword."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins do not tell
        return True, False
    by_position = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    takes_session = any(
        p.kind is inspect.Parameter.VAR_KEYWORD
        or (p.name == "session" and p.kind is not inspect.Parameter.POSITIONAL_ONLY)
        for p in parameters
    )
    takes_params = any(
        p.kind is inspect.Parameter.VAR_POSITIONAL or (p.kind in by_position and p.name != "session")
        for p in parameters
    )
    return takes_params, takes_session


def _slug(title: str) -> str | None:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or None


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
