"""The prompt: a template checked once, bound to params, sections, tools and resources, asked for text and tools.

Decides what is a valid prompt, which tool a name means now and under which policies, and what resources it brings.
Never runs a tool and never talks to a model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any, Generic, NamedTuple, Self, cast

from typing_extensions import TypeVar

from .. import serde
from ..errors import PromptValidationError, ToolValidationError, VisibilityExpansionRequired
from ..frozen import frozen
from ..resources import ResourceContext, ResourceRegistry, ToolScope
from ..session import Session
from . import visibility
from .artifacts import READ_ARTIFACT, read_artifact_tool
from .feedback import Feedback, as_feedback
from .guard import Guard, name_of, refuse_non_guard
from .overrides import LATEST, AppliedOverrides, PromptOverride, PromptOverridesStore, PromptTexts
from .policies import PlacedPolicy, ToolPolicy
from .rendering import OutputT, RenderedPrompt, RenderedSection, View, examples_text, join_blocks
from .section import (
    PlacedSection,
    Section,
    check_contents,
    field_names,
    is_fixed,
    place,
    refuse_non_policy,
    refuse_non_tool,
    type_argument,
)
from .tool import Tool
from .tool_context import ToolContext
from .tool_result import ToolResult
from .visibility import OPEN_SECTIONS, READ_SECTION, OpenSections, ReadSection, SectionPath, SectionVisibility

T = TypeVar("T")


@frozen
class ToolBinding:
    """A tool of a prompt with the policies that govern it there, in the order they are asked: outer sections first,
    the prompt's last. A policy's place is `section/path/Name#index`."""

    tool: Tool[Any, Any]
    policies: tuple[PlacedPolicy, ...]
    path: SectionPath
    """The section that has the tool; empty for tools of the prompt itself."""
    asks: bool = field(init=False)
    """Whether a policy may want somebody's approval before the call takes its turn."""
    secretive: bool = field(init=False)
    """Whether parameters or result are declared to hold secrets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", any(policy.ask is not None for policy in self.policies))
        declared = (self.tool.params_type, self.tool.result_type)
        object.__setattr__(self, "secretive", any(serde.has_secrets(hint) for hint in declared if hint is not None))


@frozen
class PlacedGuard(Generic[T]):
    """A guard of a prompt. Its place is `section/path/name#index`, as a policy's is."""

    place: str
    guard: T
    sections: tuple[PlacedSection, ...] = ()
    """The sections around it that can be disabled: a guard of a section that is not there is not asked. One of a
    folded section is: what it guards goes on."""


class _Layout:
    """All that is fixed about a prompt's sections, tools and policies: built once, looked up ever after."""

    def __init__(
        self,
        roots: tuple[PlacedSection, ...],
        prompt_policies: tuple[ToolPolicy, ...],
        extra_tools: tuple[Tool[Any, Any], ...] = (),
        feedback: tuple[Feedback, ...] = (),
        completion: tuple[Guard, ...] = (),
    ) -> None:
        self.roots = roots
        self.extra_tools = extra_tools
        self.sections = {placed.name: placed for root in roots for placed in root.walk()}
        self.folds = tuple(placed for placed in self.sections.values() if placed.section.summary is not None)
        """The sections that can be shown as a summary."""
        self.prompt_policies = _placed_policies("", prompt_policies)
        self.tools: dict[str, tuple[ToolBinding, tuple[PlacedSection, ...]]] = {}
        """Each tool, and the sections that must be open for it to be there."""
        own = {name: _placed_policies(f"{name}/", placed.section.policies) for name, placed in self.sections.items()}
        for placed in self.sections.values():
            check_contents(placed)
            lineage = placed.lineage()
            policies = (*(policy for above in lineage for policy in own[above.name]), *self.prompt_policies)
            gates = tuple(above for above in lineage if above.is_conditional)
            for tool in placed.section.tools:
                self._add(ToolBinding(tool, policies, placed.path), gates, f"Section '{placed.name}'")
        for tool in extra_tools:
            refuse_non_tool(tool, "extra_tools")
            self._add(ToolBinding(tool, self.prompt_policies, ()), (), "extra_tools")
        self.built_in: tuple[Tool[Any, Any], ...] = ()
        """Tools the prompt has because others need them."""
        if any(binding.tool.output_limit is not None for binding, _ in self.tools.values()):
            if READ_ARTIFACT in self.tools:
                raise PromptValidationError(
                    f"The tool name '{READ_ARTIFACT}' is taken: a prompt with an output_limit has a tool of that name."
                )
            self.built_in = (read_artifact_tool(),)
            self._add(ToolBinding(self.built_in[0], self.prompt_policies, ()), (), "output_limit")
        self.all_policies = (*(policy for placed in own.values() for policy in placed), *self.prompt_policies)
        self.listeners = tuple(policy for policy in self.all_policies if policy.listens is not None)
        if len({policy.place for policy in self.all_policies}) < len(self.all_policies):
            raise PromptValidationError("Two policies have the same place. Give them different names.")
        placed_sections = self.sections.values()
        self.feedback = (*_placed_guards(placed_sections, "feedback"), *_guards_at("", feedback))
        self.completion = (*_placed_guards(placed_sections, "completion"), *_guards_at("", completion))
        self.openers = _openers(self.folds)
        for name in self.openers:
            if name in self.tools:
                raise PromptValidationError(
                    f"The tool name '{name}' is taken: a prompt with summarised sections has a tool of that name."
                )

    def _add(self, binding: ToolBinding, gates: tuple[PlacedSection, ...], called: str) -> None:
        name = binding.tool.name
        if name in self.tools:
            other = "/".join(self.tools[name][0].path)
            there = f"section '{other}'" if other else "extra_tools"
            raise PromptValidationError(f"{called}: there is a tool named '{name}' in {there} already.")
        self.tools[name] = (binding, gates)


class PromptTemplate(Generic[OutputT]):
    """Sections and policies, checked when built. Immutable; serves any number of prompts and runs.

    `PromptTemplate[Answer](…)` asks for a final answer of that type.
    """

    def __init__(
        self,
        *,
        sections: Sequence[Section[Any]] = (),
        policies: Sequence[ToolPolicy] = (),
        feedback: Sequence[Guard | Feedback] = (),
        completion: Sequence[Guard] = (),
        max_reminders: int = 3,
        ns: str | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> None:
        self.ns = ns
        self.key = key
        self.name = name
        self.sections = tuple(sections)
        self.policies = tuple(policies)
        for policy in self.policies:
            refuse_non_policy(policy, "PromptTemplate")
        self.feedback = tuple(as_feedback(given, "PromptTemplate") for given in feedback)
        self.completion = tuple(completion)
        for guard in self.completion:
            refuse_non_guard(guard, "PromptTemplate", "completion")
        if isinstance(max_reminders, bool) or not isinstance(max_reminders, int) or max_reminders < 0:
            raise PromptValidationError(f"PromptTemplate: max_reminders must be 0 or more, got {max_reminders!r}.")
        self.max_reminders = max_reminders
        """How often the model is sent back to work by completion checks before its answer is taken as it is."""
        self._layout = _Layout(place(self.sections), self.policies, (), self.feedback, self.completion)

    def __repr__(self) -> str:
        return f"<PromptTemplate: {', '.join(root.name for root in self._layout.roots) or 'no sections'}>"

    @property
    def output_type(self) -> type[OutputT] | None:
        return cast("type[OutputT] | None", type_argument(self, PromptTemplate))


@frozen
class _Bound:
    """What `bind` was given so far."""

    params: Mapping[type, object] = field(default_factory=dict[type, object])
    sections: tuple[Section[Any], ...] = ()
    extra_tools: tuple[Tool[Any, Any], ...] = ()
    resources: ResourceRegistry = field(default_factory=ResourceRegistry)
    over: ResourceRegistry = field(default_factory=ResourceRegistry)
    """Resources of the run or the request, over those of sections and bind."""


class _Plan(NamedTuple):
    """A prompt whose binding was checked."""

    layout: _Layout
    values: Mapping[SectionPath, Any]
    """The params of each section."""
    registry: ResourceRegistry
    openers: Mapping[str, ToolBinding]
    """The tools that open summaries, if a section has one."""


class _Fixed(NamedTuple, Generic[OutputT]):
    """A rendering of sections whose text is not computed, and the words it was made of."""

    rendered: RenderedPrompt[OutputT]
    words: tuple[tuple[Section[Any], str | None, str | None], ...]

    def holds(self) -> bool:
        """Whether the words are still those: a subclass may compute them, and somebody may have set others."""
        return all(section.title is title and section.template is template for section, title, template in self.words)


class Prompt(Generic[OutputT]):
    """A template together with what one use of it needs. Immutable but for its open resources."""

    def __init__(
        self,
        template: PromptTemplate[OutputT],
        *,
        overrides_store: PromptOverridesStore | None = None,
        overrides_tag: str = LATEST,
    ) -> None:
        if not isinstance(template, PromptTemplate):
            raise PromptValidationError(f"Prompt takes a PromptTemplate, got {type(template).__name__}.")
        self.template = template
        self._store = overrides_store
        self._tag = overrides_tag
        self._bound = _Bound()
        self._plan: _Plan | None = None
        self._last_applied: tuple[PromptOverride, AppliedOverrides] | None = None
        self._fixed: _Fixed[OutputT] | None = None
        """What every rendering gives, if they all give the same."""
        self._resources = PromptResources(lambda: self._checked().registry)
        if overrides_store is not None:
            _ = self.texts

    def __repr__(self) -> str:
        return f"<Prompt of {self.template!r}>"

    # -- binding ---------------------------------------------------------------------------------------------------

    def bind(
        self,
        *params: object,
        resources: Mapping[Any, object] | ResourceRegistry | None = None,
        sections: Sequence[Section[Any]] = (),
        extra_tools: Sequence[Tool[Any, Any]] = (),
    ) -> Prompt[OutputT]:
        """A prompt with these added: params by their type, resources, sections behind the template's, and tools.

        Binding again goes on from there: params and resources of the same type, sections of the same key and tools of
        the same name take the place of those bound before.
        """
        old = self._bound
        keys = {section.key for section in sections if isinstance(section, Section)}
        names = {tool.name for tool in extra_tools if isinstance(tool, Tool)}
        return self._derived(
            _Bound(
                params={**old.params, **_by_type(params)},
                sections=(*(s for s in old.sections if s.key is None or s.key not in keys), *sections),
                extra_tools=(*(t for t in old.extra_tools if t.name not in names), *extra_tools),
                resources=old.resources.merge(ResourceRegistry.build(resources or {})),
                over=old.over,
            )
        )

    def with_resources(self, resources: Mapping[Any, object] | ResourceRegistry) -> Prompt[OutputT]:
        """A prompt with these resources over all it has: those of the run, then those of the request."""
        return self._derived(replace(self._bound, over=self._bound.over.merge(ResourceRegistry.build(resources))))

    def _derived(self, bound: _Bound) -> Prompt[OutputT]:
        prompt = Prompt(self.template, overrides_store=self._store, overrides_tag=self._tag)
        prompt._bound = bound
        prompt._checked()
        return prompt

    def _checked(self) -> _Plan:
        """Check the binding, the first time it matters; a prompt that was never bound may still need nothing."""
        if self._plan is None:
            template, bound = self.template, self._bound
            layout = template._layout
            if bound.sections or bound.extra_tools:
                roots = place(bound.sections, after=layout.roots)
                layout = _Layout(roots, template.policies, bound.extra_tools, template.feedback, template.completion)
            names = frozenset(layout.tools).union(layout.openers)
            for policy in layout.all_policies:
                validate = getattr(policy.policy, "validate", None)
                if callable(validate):
                    validate(names, policy.place)
            makers = {OPEN_SECTIONS: self._open_sections_tool, READ_SECTION: self._read_section_tool}
            openers = {name: ToolBinding(makers[name](), layout.prompt_policies, ()) for name in layout.openers}
            values = _values(layout, tuple(bound.params.values()))
            self._plan = _Plan(layout, values, _registry(layout, bound), openers)
        return self._plan

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def ns(self) -> str | None:
        return self.template.ns

    @property
    def key(self) -> str | None:
        return self.template.key

    @property
    def name(self) -> str | None:
        return self.template.name or self.template.key

    @property
    def output_type(self) -> type[OutputT] | None:
        return self.template.output_type

    @property
    def params(self) -> tuple[object, ...]:
        """The params that were bound."""
        return tuple(self._bound.params.values())

    @property
    def resources(self) -> PromptResources:
        """The prompt's resources: `with prompt.resources:` keeps them open, `get` opens them too."""
        return self._resources

    @property
    def listeners(self) -> tuple[PlacedPolicy, ...]:
        """Those of all policies that want to hear of successful calls."""
        return (self._plan or self._checked()).layout.listeners

    @property
    def all_policies(self) -> tuple[PlacedPolicy, ...]:
        """Every policy: those of the sections in document order, then the prompt's."""
        return self._checked().layout.all_policies

    @property
    def is_guarded(self) -> bool:
        """Whether there is feedback or a completion check at all."""
        layout = (self._plan or self._checked()).layout
        return bool(layout.feedback or layout.completion)

    def feedback(self, session: Session | None = None) -> tuple[PlacedGuard[Feedback], ...]:
        """Who may have something to say while the model works: the enabled sections' in document order, the prompt's."""
        plan = self._plan or self._checked()
        return _on_duty(plan, plan.layout.feedback, session)

    def completion(self, session: Session | None = None) -> tuple[PlacedGuard[Guard], ...]:
        """Who is asked whether the task is done, in the same order."""
        plan = self._plan or self._checked()
        return _on_duty(plan, plan.layout.completion, session)

    @property
    def texts(self) -> PromptTexts:
        """What can be overridden, and the way to write an override of it."""
        layout = self.template._layout if self._plan is None else self._plan.layout
        tools = {name: binding.tool for name, (binding, _) in layout.tools.items()}
        return PromptTexts(self.ns, self.key, layout.sections, tools)

    def install(self, session: Session) -> None:
        """Register what the sections' slices and the visibility of sections need. Doing it again changes nothing."""
        layout = self._checked().layout
        if layout.folds:
            visibility.install(session)
        for placed in layout.sections.values():
            placed.section.install(session)

    # -- rendering -------------------------------------------------------------------------------------------------

    def render(
        self,
        session: Session | None = None,
        *,
        overrides: PromptOverridesStore | None = None,
        tag: str | None = None,
    ) -> RenderedPrompt[OutputT]:
        """The text and the tools as this session sees them now; a store's overrides of `tag` apply."""
        if self._fixed is not None and overrides is None and self._fixed.holds():
            return self._fixed.rendered
        layout, values, _, openers = self._checked()
        applied = self._applied(overrides or self._store, tag or self._tag)
        view = View(values, session, applied)
        shown = list(view.shown(layout.roots))
        tools = [tool for placed, how in shown if how is SectionVisibility.FULL for tool in placed.section.tools]
        tools += layout.extra_tools
        if applied is not None:
            tools = [applied.tools.get(tool.name, tool) for tool in tools]
        tools += layout.built_in
        folded = [placed for placed, how in shown if how is SectionVisibility.SUMMARY]
        tools += (openers[name].tool for name in _openers(folded))
        blocks = (view.block(placed, how) for placed, how in shown)
        rendered = RenderedPrompt(
            text=join_blocks(*blocks, examples_text(layout.extra_tools)),
            tools=tuple(tools),
            sections=tuple(RenderedSection(placed.path, placed.section.title, how) for placed, how in shown),
            params=self.params,
            output_type=self.output_type,
        )
        # A loop renders at every turn; what can only ever be the same is made once.
        if overrides is None and self._store is None and all(map(is_fixed, layout.sections.values())):
            sections = [placed.section for placed in layout.sections.values()]
            self._fixed = _Fixed[OutputT](rendered, tuple((each, each.title, each.template) for each in sections))
        return rendered

    def _applied(self, store: PromptOverridesStore | None, tag: str) -> AppliedOverrides | None:
        if store is None:
            return None
        texts = self.texts
        override = store.resolve(texts.ns, texts.key, tag)
        if override is None:
            return None
        # An unchanged override is applied once: its warnings are said once, not at every turn.
        last = self._last_applied
        if last is None or last[0] != override:
            last = self._last_applied = (override, texts.apply(override))
        return last[1]

    # -- tools -----------------------------------------------------------------------------------------------------

    def find_tool(self, name: str, session: Session | None = None) -> ToolBinding | None:
        """The tool of that name with its policies, if it is there now: a disabled or folded section hides its tools."""
        plan = self._plan or self._checked()
        found = plan.layout.tools.get(name)
        if found is None:
            is_there = name in plan.openers and name in self._open_now(plan, session)
            return plan.openers[name] if is_there else None
        binding, gates = found
        if gates:
            view = View(plan.values, session)
            if not all(map(view.is_open, gates)):
                return None
        return binding

    def governing(self, tool: Tool[Any, Any]) -> ToolBinding:
        """The tool with the policies it stands under when it is called from Python: those of its section, shown or
        not, and the prompt's; for a tool the prompt does not have, the prompt's."""
        layout = (self._plan or self._checked()).layout
        found = layout.tools.get(tool.name)
        if found is not None and found[0].tool.handler is tool.handler:
            return found[0] if found[0].tool is tool else ToolBinding(tool, found[0].policies, found[0].path)
        return ToolBinding(tool, layout.prompt_policies, ())

    def tool_names(self, session: Session | None = None) -> tuple[str, ...]:
        """The names of the tools that are there now, in the order of the rendered prompt."""
        plan = self._checked()
        view = View(plan.values, session)
        names = [name for name, (_, gates) in plan.layout.tools.items() if all(map(view.is_open, gates))]
        return (*names, *self._open_now(plan, session))

    def _open_now(self, plan: _Plan, session: Session | None) -> tuple[str, ...]:
        """The tools that open summaries, as far as there is something to open."""
        if not plan.openers:
            return ()
        view = View(plan.values, session)
        return _openers(placed for placed, how in view.shown(plan.layout.roots) if how is SectionVisibility.SUMMARY)

    # -- opening summaries -----------------------------------------------------------------------------------------

    def _open_sections_tool(self) -> Tool[OpenSections, str]:
        def open_sections(params: OpenSections, *, context: ToolContext) -> ToolResult[str]:
            return self._open_sections(params, context.session)

        return Tool[OpenSections, str](
            name=OPEN_SECTIONS,
            description="Open summarised sections: their full text and their tools are there from the next turn on.",
            handler=open_sections,
            accepts_overrides=False,
        )

    def _read_section_tool(self) -> Tool[ReadSection, str]:
        def read_section(params: ReadSection, *, context: ToolContext) -> ToolResult[str]:
            return ToolResult.ok(self._read_section(params.section_key, context.session))

        return Tool[ReadSection, str](
            name=READ_SECTION,
            description="Read the full text of a summarised section that has no tools.",
            handler=read_section,
            accepts_overrides=False,
            effects="none",
        )

    def _open_sections(self, params: OpenSections, session: Session) -> ToolResult[str]:
        plan = self._checked()
        view = View(plan.values, session)
        if not params.section_keys:
            raise ToolValidationError(f"No section named. {_choice(self._folded(view))}")
        requested: dict[SectionPath, SectionVisibility] = {}
        for key in params.section_keys:
            placed = self._known(view, key)
            # A section inside a folded one is seen only when that one is open too.
            folded = [s for s in placed.lineage() if view.visibility(s) is SectionVisibility.SUMMARY]
            requested |= {s.path: SectionVisibility.FULL for s in folded}
        if not requested:
            names = ", ".join(f"'{key}'" for key in params.section_keys)
            return ToolResult.ok("", f"Already open: {names}. Read the prompt above and use the tools it names.")
        raise VisibilityExpansionRequired(
            requested_overrides=requested, section_keys=params.section_keys, reason=params.reason
        )

    def _read_section(self, key: str, session: Session) -> str:
        plan = self._checked()
        view = View(plan.values, session, self._applied(self._store, self._tag))
        placed = self._known(view, key)
        if placed.has_tools:
            raise ToolValidationError(
                f"Section '{placed.name}' cannot be read here because it has tools. "
                f'Call {OPEN_SECTIONS} with section_keys ["{placed.name}"] instead.'
            )
        return view.whole(placed)

    def _known(self, view: View, key: str) -> PlacedSection:
        """The section a model names, if it may know of it: a disabled section does not exist for it."""
        placed = self._checked().layout.sections.get(key.strip().strip("/"))
        if placed is None or not all(map(view.is_enabled, placed.lineage())):
            raise ToolValidationError(f"Unknown section '{key}'. {_choice(self._folded(view))}")
        return placed

    def _folded(self, view: View) -> list[str]:
        shown = view.shown(self._checked().layout.roots)
        return [placed.name for placed, how in shown if how is SectionVisibility.SUMMARY]


class PromptResources:
    """The resources of one prompt. `with prompt.resources:` keeps them open; blocks may nest, the outermost closes.

    Without a block they open at the first access and stay open until `close()`, also through later blocks. Closed
    resources may be opened again; singletons are then built anew.
    """

    __slots__ = ("_context", "_holders", "_kept", "_lock", "_registry")

    def __init__(self, registry: Callable[[], ResourceRegistry]) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._context: ResourceContext | None = None
        self._holders = 0
        self._kept = False

    @property
    def is_open(self) -> bool:
        return self._context is not None

    @property
    def context(self) -> ResourceContext:
        """The open resources; opens them, until `close()`, when no block does."""
        context = self._context
        if context is None:
            with self._lock:
                # A block of another thread may have opened them meanwhile; then the block keeps them, not we.
                self._kept = self._kept or self._context is None
                context = self._open()
        return context

    def get(self, protocol: type[T], /) -> T:
        """The resource bound as `protocol`, built at the first access."""
        return self.context.get(protocol)

    def get_optional(self, protocol: type[T], /) -> T | None:
        """The resource bound as `protocol`, or None when nothing is bound as it."""
        return self.context.get_optional(protocol)

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._registry()

    def tool_scope(self) -> ToolScope:
        """Begin the resources of one tool call; the holder closes them."""
        return self.context.tool_scope()

    @property
    def built(self) -> tuple[object, ...]:
        """The live singletons, in build order."""
        return self.context.built

    def observe(self, fn: Callable[[object], object], /) -> Callable[[], None]:
        """Call `fn` with each instance just before it is first handed out; returns the way to stop."""
        return self.context.observe(fn)

    def close(self) -> None:
        """Let go of what an access outside of any block opened; blocks that are still open keep it until they end."""
        context = self._let_go(0)
        if context is not None:
            context.close()

    async def aclose(self) -> None:
        """`close` on the caller's event loop."""
        context = self._let_go(0)
        if context is not None:
            await context.aclose()

    def __enter__(self) -> Self:
        with self._lock:
            self._open()
            self._holders += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        context = self._let_go(1)
        if context is not None:
            # Its own way out raises failures to close, or notes them on an error that is on its way.
            context.__enter__()
            context.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        context = self._let_go(1)
        if context is None:
            return
        try:
            await context.aclose()
        except Exception as failure:
            # INVARIANT: a failure to close never hides the error that ended the block.
            if error is None:
                raise
            error.add_note(f"Closing the prompt's resources failed as well: {failure}")

    def _open(self) -> ResourceContext:
        if self._context is None:
            self._context = self._registry().open()
        return self._context

    def _let_go(self, holders: int) -> ResourceContext | None:
        """Give back one hold, a block's or the implicit one; the context comes back when it was the last."""
        with self._lock:
            self._holders -= holders
            if not holders:
                self._kept = False
            if self._holders or self._kept:
                return None
            context, self._context = self._context, None
            return context


def _placed_policies(prefix: str, policies: Sequence[ToolPolicy]) -> tuple[PlacedPolicy, ...]:
    return tuple(
        PlacedPolicy(f"{prefix}{getattr(policy, 'name', None) or type(policy).__name__}#{index}", policy)
        for index, policy in enumerate(policies)
    )


def _placed_guards(sections: Iterable[PlacedSection], word: str) -> tuple[PlacedGuard[Any], ...]:
    found: list[PlacedGuard[Any]] = []
    for placed in sections:
        guards: Sequence[Any] = getattr(placed.section, word)
        if guards:
            gates = tuple(above for above in placed.lineage() if above.section.enabled is not None)
            found += _guards_at(f"{placed.name}/", guards, gates)
    return tuple(found)


def _guards_at(prefix: str, guards: Sequence[T], gates: tuple[PlacedSection, ...] = ()) -> tuple[PlacedGuard[T], ...]:
    return tuple(PlacedGuard(f"{prefix}{name_of(guard)}#{index}", guard, gates) for index, guard in enumerate(guards))


def _on_duty(plan: _Plan, guards: tuple[PlacedGuard[T], ...], session: Session | None) -> tuple[PlacedGuard[T], ...]:
    if not any(guard.sections for guard in guards):
        return guards
    view = View(plan.values, session)
    return tuple(guard for guard in guards if all(map(view.is_enabled, guard.sections)))


def _by_type(params: tuple[object, ...]) -> dict[type, object]:
    by_type: dict[type, object] = {}
    for value in params:
        if isinstance(value, type) or not is_dataclass(value):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise PromptValidationError(f"bind takes instances of params dataclasses, got {got}.")
        if type(value) in by_type:
            raise PromptValidationError(f"bind got two params of type {type(value).__name__}. Pass one.")
        by_type[type(value)] = value
    return by_type


def _values(layout: _Layout, params: tuple[object, ...]) -> dict[SectionPath, Any]:
    """The params of each section; refuses what is missing, and what nobody uses."""
    values: dict[SectionPath, Any] = {}
    used: list[object] = []
    for placed in layout.sections.values():
        section = placed.section
        wanted: type | None = section.params_type
        if wanted is None:
            owners = {word: _owner(placed, word, params) for word in section.placeholders}
            used.extend(owners.values())
            values[placed.path] = (
                SimpleNamespace(**{word: getattr(owner, word) for word, owner in owners.items()}) if owners else None
            )
            continue
        exact = [value for value in params if type(value) is wanted]
        found = exact or [value for value in params if isinstance(value, wanted)]
        if found:
            used.append(found[0])
            values[placed.path] = found[0]
        elif section.default_params is not None:
            values[placed.path] = section.default_params
        elif all(_has_default(entry) for entry in fields(wanted) if entry.init):
            values[placed.path] = wanted()
        else:
            raise PromptValidationError(
                f"Section '{placed.name}' needs params of type {wanted.__name__}. Pass them: bind({wanted.__name__}(...))."
            )
    for value in params:
        if not any(value is other for other in used):
            raise PromptValidationError(f"Params of type {type(value).__name__} are used by no section.")
    return values


def _owner(placed: PlacedSection, word: str, params: tuple[object, ...]) -> object:
    """The bound params that have the field a placeholder names."""
    owners = [value for value in params if word in field_names(type(value))]
    if not owners:
        raise PromptValidationError(
            f"Section '{placed.name}' needs a value for ${{{word}}}. Bind a params dataclass with a field of that name."
        )
    if len(owners) > 1:
        names = " and ".join(type(owner).__name__ for owner in owners)
        raise PromptValidationError(
            f"Section '{placed.name}': ${{{word}}} is a field of {names}. "
            f"Write MarkdownSection[{type(owners[0]).__name__}] to say which is meant."
        )
    return owners[0]


def _has_default(entry: Any) -> bool:
    return entry.default is not MISSING or entry.default_factory is not MISSING


def _registry(layout: _Layout, bound: _Bound) -> ResourceRegistry:
    """Section resources, those of bind over them, those of the run and the request over all."""
    upper = bound.resources.merge(bound.over)
    brought: dict[Any, object] = {}
    by: dict[Any, str] = {}
    for placed in layout.sections.values():
        for protocol, value in placed.section.resources().items():
            if protocol in brought and brought[protocol] is not value and protocol not in upper:
                name = getattr(protocol, "__name__", repr(protocol))
                raise PromptValidationError(
                    f"Sections '{by[protocol]}' and '{placed.name}' both bring a {name}. "
                    f"Say which is meant: bind(resources={{{name}: ...}})."
                )
            brought[protocol] = value
            by[protocol] = placed.name
    return ResourceRegistry.build(brought).merge(upper)


def _openers(folded: Iterable[PlacedSection]) -> tuple[str, ...]:
    has_tools = {placed.has_tools for placed in folded}
    return tuple(name for name, wanted in ((OPEN_SECTIONS, True), (READ_SECTION, False)) if wanted in has_tools)


def _choice(names: Sequence[str]) -> str:
    return f"Summarised sections: {', '.join(names)}." if names else "No section is summarised now; do not retry."
