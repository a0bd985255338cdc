"""Claims about resources: bindings, lifetimes, order, failure, threads (S41, S42)."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import pytest

from weakincentives.errors import ResourceError
from weakincentives.resources import (
    Binding,
    Closeable,
    Participant,
    PostConstruct,
    ResourceCloseError,
    ResourceContext,
    ResourceRegistry,
    Scope,
    Snapshotable,
)
from weakincentives.transaction import ResourceView

T = TypeVar("T")


class Journal(list[str]):
    """What happened, in order."""


class Recorder:
    """A resource that writes down its own life."""

    def __init__(self, journal: Journal, *needs: object) -> None:
        self.journal = journal
        self.needs = needs
        journal.append(f"+{type(self).__name__}")

    def close(self) -> None:
        self.journal.append(f"-{type(self).__name__}")


class A(Recorder): ...


class B(Recorder): ...


class C(Recorder): ...


class Plain:
    """A resource without any lifecycle."""


@pytest.fixture
def journal() -> Journal:
    return Journal()


def single(
    cls: type[T], *needs: type[Any], journal: Journal, scope: Scope = Scope.SINGLETON, eager: bool = False
) -> Binding[T]:
    return Binding(cls, lambda r: cls(journal, *(r.get(need) for need in needs)), scope, eager)  # type: ignore[call-arg]


# Bindings and registries


def test_binding_one_type_twice_is_refused() -> None:
    """A registry with two bindings of one type cannot be made."""
    with pytest.raises(ResourceError) as caught:
        ResourceRegistry.of(Binding(Plain, lambda r: Plain()), Binding(Plain, lambda r: Plain()))
    assert str(caught.value) == "Plain is bound twice. Bind it once, or replace it with merge()."


def test_registry_takes_bindings_only() -> None:
    """Something else than a binding is refused by name."""
    with pytest.raises(ResourceError) as caught:
        ResourceRegistry.of(Plain())  # type: ignore[arg-type]
    assert str(caught.value) == "A registry takes bindings, got Plain."


def test_binding_needs_a_type() -> None:
    """A resource cannot be bound by a string."""
    with pytest.raises(ResourceError) as caught:
        Binding("Plain", lambda r: Plain())  # type: ignore[arg-type]
    assert str(caught.value) == "A resource is bound by its type, got 'Plain'."


def test_binding_needs_a_provider() -> None:
    """An instance in the provider's place is told to use Binding.instance."""
    with pytest.raises(ResourceError) as caught:
        Binding(Plain, Plain())  # type: ignore[arg-type]
    assert str(caught.value) == (
        "The provider of Plain is not callable. Pass a function of the resolver, "
        "or Binding.instance(Plain, value) for a value that is already built."
    )


def test_binding_needs_a_scope() -> None:
    """A scope given as text is refused."""
    with pytest.raises(ResourceError) as caught:
        Binding(Plain, lambda r: Plain(), "singleton")  # type: ignore[arg-type]
    assert str(caught.value) == "The scope of Plain must be a Scope, got 'singleton'."


@pytest.mark.parametrize("scope", [Scope.TOOL_CALL, Scope.PROTOTYPE])
def test_only_singletons_are_eager(scope: Scope) -> None:
    """Eager makes sense for singletons alone."""
    with pytest.raises(ResourceError) as caught:
        Binding(Plain, lambda r: Plain(), scope, eager=True)
    assert str(caught.value) == "Plain cannot be eager: only a SINGLETON is built when the context opens."


def test_none_cannot_be_bound() -> None:
    """None as an instance is refused, since it means unbound."""
    with pytest.raises(ResourceError) as caught:
        ResourceRegistry.build({Plain: None})
    assert str(caught.value) == "None cannot be bound as Plain. Leave the binding out instead."


def test_binding_refuses_a_class_for_its_instance() -> None:
    """Passing the class itself is a slip that would show only when a handler calls a method."""
    with pytest.raises(ResourceError) as caught:
        ResourceRegistry.build({Plain: Plain})

    assert str(caught.value) == (
        "Plain is a class, and an instance of Plain is wanted. "
        "Pass one, or Binding(Plain, lambda resolver: Plain()) to have it built."
    )


def test_a_class_can_be_a_resource_of_another_type() -> None:
    """A class may serve as a factory or be bound as what classes are."""
    with ResourceRegistry.build({type: Plain}).open() as context:
        assert context.get(type) is Plain


def test_build_takes_instances_and_bindings(journal: Journal) -> None:
    """A mapping's value is an instance or a binding."""
    plain = Plain()
    with ResourceRegistry.build({Plain: plain, A: single(A, journal=journal)}).open() as ctx:
        assert ctx.get(Plain) is plain
        assert isinstance(ctx.get(A), A)


def test_build_returns_a_registry_as_it_is() -> None:
    """A registry passed where a mapping may stand is used unchanged."""
    registry = ResourceRegistry.of(Binding(Plain, lambda r: Plain()))
    assert ResourceRegistry.build(registry) is registry


def test_build_refuses_a_binding_under_another_key(journal: Journal) -> None:
    """Key and binding must name the same type."""
    with pytest.raises(ResourceError) as caught:
        ResourceRegistry.build({A: single(B, journal=journal)})
    assert str(caught.value) == ("The binding under A is one of B. Use the same type as key and in the Binding.")


def test_merge_lets_the_other_win(journal: Journal) -> None:
    """After a merge the other's binding is used, and neither original changed."""
    mine, other = Plain(), Plain()
    first = ResourceRegistry.build({Plain: mine, A: single(A, journal=journal)})
    second = ResourceRegistry.build({Plain: other})
    merged = first.merge(second)
    assert [r.open().get(Plain) for r in (first, second, merged)] == [mine, other, other]
    assert (A in merged, A in second, len(merged)) == (True, False, 2)


def test_registry_lists_its_bindings(journal: Journal) -> None:
    """A registry can be iterated in binding order and shows its types."""
    registry = ResourceRegistry.of(single(A, journal=journal), single(B, journal=journal))
    assert [binding.protocol for binding in registry] == [A, B]
    assert repr(registry) == "ResourceRegistry(A, B)"


def test_registry_opens_many_times(journal: Journal) -> None:
    """Contexts of one registry share no singletons."""
    registry = ResourceRegistry.of(single(A, journal=journal))
    with registry.open() as one, registry.open() as two:
        assert one.get(A) is not two.get(A)


def test_protocols_and_generic_types_can_be_bound() -> None:
    """A resource may be bound as a Protocol or as a parametrised type."""

    class Speaker(Protocol):
        def speak(self) -> str: ...

    class Dog:
        def speak(self) -> str:
            return "wuff"

    class Box(Generic[T]): ...

    box = Box[int]()
    with ResourceRegistry.build({Speaker: Dog(), Box[int]: box}).open() as ctx:
        assert ctx.get(Speaker).speak() == "wuff"
        assert ctx.get(Box[int]) is box


# Lifetimes


def test_singleton_is_one_instance(journal: Journal) -> None:
    """Context and tool scopes hand out the same singleton, built at the first access."""
    with ResourceRegistry.of(single(A, journal=journal)).open() as ctx:
        assert journal == []
        with ctx.tool_scope() as scope:
            assert scope.get(A) is ctx.get(A) is scope.get_optional(A)
        assert journal == ["+A"]
    assert journal == ["+A", "-A"]


def test_tool_call_resource_is_new_for_each_call(journal: Journal) -> None:
    """Each tool scope has its own instance, the same within the scope, closed at its end."""
    with ResourceRegistry.of(single(A, journal=journal, scope=Scope.TOOL_CALL)).open() as ctx:
        with ctx.tool_scope() as scope:
            first = scope.get(A)
            assert scope.get(A) is first is scope.get_optional(A)
        assert journal == ["+A", "-A"]
        with ctx.tool_scope() as scope:
            assert scope.get(A) is not first
    assert journal == ["+A", "-A", "+A", "-A"]


def test_two_tool_scopes_are_held_side_by_side(journal: Journal) -> None:
    """Scopes that are open at the same time do not see each other's instances."""
    with ResourceRegistry.of(single(A, journal=journal, scope=Scope.TOOL_CALL)).open() as ctx:
        one, two = ctx.tool_scope(), ctx.tool_scope()
        assert one.get(A) is not two.get(A)
        one.close()
        assert isinstance(two.get(A), A)
        two.close()
    assert journal == ["+A", "+A", "-A", "-A"]


def test_scope_of_a_scope_is_a_sibling(journal: Journal) -> None:
    """A tool call made by a tool call gets its own instances and the same singletons."""
    registry = ResourceRegistry.of(single(A, journal=journal, scope=Scope.TOOL_CALL), single(B, journal=journal))
    with registry.open() as ctx, ctx.tool_scope() as outer, outer.tool_scope() as inner:
        assert inner.get(A) is not outer.get(A)
        assert inner.get(B) is outer.get(B)
        assert inner.context is outer.context is ctx


def test_tool_call_resource_needs_a_scope(journal: Journal) -> None:
    """Asking the context itself for a tool-call resource says where to ask."""
    with (
        ResourceRegistry.of(single(A, journal=journal, scope=Scope.TOOL_CALL)).open() as ctx,
        pytest.raises(ResourceError) as caught,
    ):
        ctx.get(A)
    assert str(caught.value) == (
        "Cannot get A here: it is bound for a single tool call. "
        "Ask a tool scope for it: with context.tool_scope() as scope."
    )


def test_prototype_is_new_at_each_access(journal: Journal) -> None:
    """Every access to a prototype builds one, closed with the scope or context that was asked."""
    with ResourceRegistry.of(single(A, journal=journal, scope=Scope.PROTOTYPE)).open() as ctx:
        assert ctx.get(A) is not ctx.get(A)
        with ctx.tool_scope() as scope:
            assert scope.get(A) is not scope.get(A)
        assert journal == ["+A"] * 4 + ["-A"] * 2
    assert journal == ["+A"] * 4 + ["-A"] * 4


def test_prototype_of_a_singleton_lives_with_it(journal: Journal) -> None:
    """A prototype that a singleton took while a tool call built it is not closed with that call."""
    registry = ResourceRegistry.of(single(A, B, journal=journal), single(B, journal=journal, scope=Scope.PROTOTYPE))
    with registry.open() as ctx:
        with ctx.tool_scope() as scope:
            scope.get(A)
        assert journal == ["+B", "+A"]
    assert journal == ["+B", "+A", "-A", "-B"]


def test_prototype_taken_through_a_captured_scope_lives_with_the_singleton(journal: Journal) -> None:
    """A singleton that asks a tool scope it captured still gets a prototype that outlives the call."""
    held: list[Any] = []
    registry = ResourceRegistry.of(
        Binding(A, lambda r: A(journal, held[0].get(B))), single(B, journal=journal, scope=Scope.PROTOTYPE)
    )
    with registry.open() as ctx:
        with ctx.tool_scope() as scope:
            held.append(scope)
            scope.get(A)
        assert journal == ["+B", "+A"]


def test_eager_singletons_are_built_at_opening(journal: Journal) -> None:
    """Eager singletons are built in binding order when the registry opens."""
    registry = ResourceRegistry.of(
        single(A, journal=journal), single(B, journal=journal, eager=True), single(C, journal=journal, eager=True)
    )
    with registry.open():
        assert journal == ["+B", "+C"]


def test_context_works_without_with(journal: Journal) -> None:
    """An opened context is live at once and ends by close()."""
    ctx = ResourceRegistry.of(single(A, journal=journal)).open()
    ctx.get(A)
    before = ctx.closed
    ctx.close()
    assert (before, ctx.closed, journal) == (False, True, ["+A", "-A"])


def test_entering_a_context_again_is_fine(journal: Journal) -> None:
    """S42: of nested `with` blocks on one context the outermost closes."""
    ctx = ResourceRegistry.of(single(A, journal=journal)).open()
    with ctx:
        with ctx as same:
            same.get(A)
        assert journal == ["+A"]
    assert journal == ["+A", "-A"]


def test_contains_tells_what_is_bound(journal: Journal) -> None:
    """Asking whether a type is bound builds nothing."""
    with ResourceRegistry.of(single(A, journal=journal)).open() as ctx, ctx.tool_scope() as scope:
        assert (A in ctx, B in ctx, A in scope, B in scope) == (True, False, True, False)
    assert journal == []


# What is missing, closed or wrong


def test_unbound_type_names_the_nearest() -> None:
    """Asking for an unbound type names it and the bound names, nearest first."""

    class HTTPClient: ...

    class HTTPClientConfig: ...

    class Zebra: ...

    class HttpClent: ...

    registry = ResourceRegistry.build({Zebra: Zebra(), HTTPClientConfig: HTTPClientConfig(), HTTPClient: HTTPClient()})
    with registry.open() as ctx:
        for resolver in (ctx, ctx.tool_scope()):
            with pytest.raises(ResourceError) as caught:
                resolver.get(HttpClent)
            assert str(caught.value) == (
                "No resource is bound as HttpClent. Nearest of those bound: HTTPClient, HTTPClientConfig, Zebra. "
                "Bind HttpClent in the registry or in resources=."
            )


def test_unbound_type_in_an_empty_registry() -> None:
    """With nothing bound the error says so."""
    with ResourceRegistry.of().open() as ctx, pytest.raises(ResourceError) as caught:
        ctx.get(Plain)
    assert str(caught.value) == (
        "No resource is bound as Plain. Nothing is bound. Bind Plain in the registry or in resources=."
    )


def test_get_optional_is_none_when_unbound() -> None:
    """An optional resource that nobody bound is None, in context and scope."""
    with ResourceRegistry.of().open() as ctx, ctx.tool_scope() as scope:
        assert (ctx.get_optional(Plain), scope.get_optional(Plain)) == (None, None)


def test_get_after_close_is_refused(journal: Journal) -> None:
    """A closed context hands out nothing, not even what it had built, and says what to do."""
    ctx = ResourceRegistry.of(single(A, journal=journal)).open()
    ctx.get(A)
    scope = ctx.tool_scope()
    ctx.close()
    asks: list[Callable[[type[A]], object]] = [ctx.get, ctx.get_optional, scope.get, scope.get_optional]
    for ask in asks:
        with pytest.raises(ResourceError) as caught:
            ask(A)
        assert str(caught.value) == "Cannot get A: these resources are closed. Open the registry again."


def test_closed_context_cannot_be_entered() -> None:
    """Entering a closed context, or beginning a tool scope on it, is refused."""
    ctx = ResourceRegistry.of().open()
    ctx.close()
    with pytest.raises(ResourceError) as caught, ctx:
        pass
    assert str(caught.value) == "Cannot enter these resources: they are closed. Open the registry again."
    with pytest.raises(ResourceError) as caught:
        ctx.tool_scope()
    assert str(caught.value) == "Cannot begin a tool scope: these resources are closed. Open the registry again."


@pytest.mark.parametrize("used", [False, True])
def test_get_after_the_tool_call_is_refused(journal: Journal, used: bool) -> None:
    """A scope that has ended hands out nothing, whether it built something or not."""
    registry = ResourceRegistry.of(single(A, journal=journal), single(B, journal=journal, scope=Scope.TOOL_CALL))
    with registry.open() as ctx:
        ctx.get(A)
        scope = ctx.tool_scope()
        if used:
            scope.get(B)
        scope.close()
        assert scope.closed
        for protocol in (A, B):
            with pytest.raises(ResourceError) as caught:
                scope.get(protocol)
            assert str(caught.value) == (
                f"Cannot get {protocol.__name__}: the tool call it was asked for has ended. "
                "Take what you need while the call runs."
            )


def test_provider_of_none_is_refused() -> None:
    """A provider that returns None is an error naming the type."""
    with ResourceRegistry.of(Binding(Plain, lambda r: None)).open() as ctx, pytest.raises(ResourceError) as caught:  # type: ignore[arg-type,return-value]
        ctx.get(Plain)
    assert str(caught.value) == "The provider of Plain returned None instead of an instance."


def test_async_provider_is_refused() -> None:
    """A provider or post_construct that is a coroutine function is an error, not a forgotten coroutine."""

    async def provider(r: object) -> Plain:
        return Plain()

    class Late:
        async def post_construct(self) -> None: ...

    registry = ResourceRegistry.of(Binding(Plain, provider), Binding(Late, lambda r: Late()))  # type: ignore[arg-type]
    with registry.open() as ctx:
        for protocol, name in ((Plain, "The provider of Plain"), (Late, "Late.post_construct")):
            with pytest.raises(ResourceError) as caught:
                ctx.get(protocol)
            assert str(caught.value) == (
                f"{name} is async, but resources are built without an event loop. Make it a plain function."
            )


def test_provider_error_passes_unchanged_with_its_path() -> None:
    """What a provider raises arrives as it is, noted with the resources under construction."""

    def fail(r: object) -> Plain:
        raise ConnectionError("no route")

    registry = ResourceRegistry.of(Binding(Plain, fail), Binding(A, lambda r: A(Journal(), r.get(Plain))))
    with registry.open() as ctx, pytest.raises(ConnectionError, match=r"^no route") as caught:
        ctx.get(A)
    assert caught.value.__notes__ == ["while building resource Plain", "while building resource A"]


def test_failed_singleton_can_be_tried_again() -> None:
    """A provider that failed is run again at the next access."""
    attempts: list[int] = []

    def flaky(r: object) -> Plain:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("later")
        return Plain()

    with ResourceRegistry.of(Binding(Plain, flaky)).open() as ctx:
        with pytest.raises(ConnectionError):
            ctx.get(Plain)
        assert isinstance(ctx.get(Plain), Plain)


# Dependencies that cannot be


@pytest.mark.parametrize("scope", list(Scope))
def test_circle_is_an_ordered_path(journal: Journal, scope: Scope) -> None:
    """Resources that need each other are reported as a path in the order of asking, in every scope."""
    registry = ResourceRegistry.of(
        single(A, B, journal=journal, scope=scope),
        single(B, C, journal=journal, scope=scope),
        single(C, B, journal=journal, scope=scope),
    )
    with registry.open() as ctx, ctx.tool_scope() as resolver, pytest.raises(ResourceError) as caught:
        resolver.get(A)
    assert str(caught.value) == "Resources depend on each other in a circle: B -> C -> B."


def test_self_circle_through_a_captured_context(journal: Journal) -> None:
    """A circle is seen too when a provider asks the context directly instead of its resolver."""
    held: list[ResourceContext] = []
    with ResourceRegistry.of(Binding(A, lambda r: A(journal, held[0].get(A)))).open() as ctx:
        held.append(ctx)
        with pytest.raises(ResourceError) as caught:
            ctx.get(A)
    assert str(caught.value) == "Resources depend on each other in a circle: A -> A."


def test_same_types_in_two_contexts_are_no_circle(journal: Journal) -> None:
    """A provider may ask another open context for the very type it provides."""
    with (
        ResourceRegistry.of(single(A, journal=journal)).open() as outer,
        ResourceRegistry.of(Binding(A, lambda r: A(journal, outer.get(A)))).open() as inner,
    ):
        assert inner.get(A).needs == (outer.get(A),)


@pytest.mark.parametrize("optional", [False, True])
def test_singleton_cannot_capture_a_tool_call_resource(journal: Journal, optional: bool) -> None:
    """A singleton that asks for a tool-call resource is refused with both names, however it asks."""

    def provide(r: Any) -> A:
        return A(journal, (r.get_optional if optional else r.get)(B))

    registry = ResourceRegistry.of(Binding(A, provide), single(B, journal=journal, scope=Scope.TOOL_CALL))
    with registry.open() as ctx, ctx.tool_scope() as scope, pytest.raises(ResourceError) as caught:
        scope.get(A)
    assert str(caught.value) == (
        "Singleton A cannot depend on B, which lives for a single tool call (A -> B). "
        "Bind A with Scope.TOOL_CALL too, or B as a singleton."
    )
    assert journal == []


def test_capture_through_a_prototype_is_refused(journal: Journal) -> None:
    """The path is shown when a prototype stands between the singleton and the tool-call resource."""
    registry = ResourceRegistry.of(
        single(A, C, journal=journal),
        single(C, B, journal=journal, scope=Scope.PROTOTYPE),
        single(B, journal=journal, scope=Scope.TOOL_CALL),
    )
    with registry.open() as ctx, ctx.tool_scope() as scope, pytest.raises(ResourceError) as caught:
        scope.get(A)
    assert str(caught.value) == (
        "Singleton A cannot depend on B, which lives for a single tool call (A -> C -> B). "
        "Bind A with Scope.TOOL_CALL too, or B as a singleton."
    )


def test_capture_through_a_held_scope_is_refused(journal: Journal) -> None:
    """A singleton cannot get round the rule by asking a tool scope it captured."""
    held: list[Any] = []
    registry = ResourceRegistry.of(
        Binding(A, lambda r: A(journal, held[0].get(B))), single(B, journal=journal, scope=Scope.TOOL_CALL)
    )
    with registry.open() as ctx, ctx.tool_scope() as scope:
        held.append(scope)
        with pytest.raises(ResourceError, match=r"^Singleton A cannot depend on B"):
            ctx.get(A)


def test_eager_capture_is_refused_at_opening(journal: Journal) -> None:
    """An eager singleton that would capture a tool-call resource keeps the registry from opening."""
    registry = ResourceRegistry.of(
        single(C, journal=journal, eager=True),
        single(A, B, journal=journal, eager=True),
        single(B, journal=journal, scope=Scope.TOOL_CALL),
    )
    with pytest.raises(ResourceError, match=r"^Singleton A cannot depend on B"):
        registry.open()
    assert journal == ["+C", "-C"]


def test_tool_call_resources_may_use_all_scopes(journal: Journal) -> None:
    """A tool-call resource may depend on singletons, prototypes and other tool-call resources."""
    registry = ResourceRegistry.of(
        single(A, journal=journal),
        single(B, A, journal=journal, scope=Scope.PROTOTYPE),
        Binding(Plain, lambda r: Plain(), Scope.TOOL_CALL),
        single(C, A, B, Plain, journal=journal, scope=Scope.TOOL_CALL),
    )
    with registry.open() as ctx:
        with ctx.tool_scope() as scope:
            assert scope.get(C).needs[2] is scope.get(Plain)
        assert journal == ["+A", "+B", "+C", "-C", "-B"]


# Closing


def test_closing_goes_in_reverse_build_order(journal: Journal) -> None:
    """A resource is closed before what it was built from."""
    registry = ResourceRegistry.of(
        single(C, journal=journal), single(B, C, journal=journal), single(A, B, journal=journal)
    )
    with registry.open() as ctx:
        ctx.get(A)
    assert journal == ["+C", "+B", "+A", "-A", "-B", "-C"]


def test_closing_twice_closes_once(journal: Journal) -> None:
    """close() may be repeated, on context and scope."""
    registry = ResourceRegistry.of(single(A, journal=journal), single(B, journal=journal, scope=Scope.TOOL_CALL))
    with registry.open() as ctx:
        with ctx.tool_scope() as scope:
            scope.get(A), scope.get(B)
            scope.close()
        ctx.close()
    ctx.close()
    assert journal == ["+A", "+B", "-B", "-A"]


def test_adopted_instances_are_not_ours(journal: Journal) -> None:
    """What was passed in already built is neither post-constructed nor closed."""

    class Own(Recorder):
        def post_construct(self) -> None:
            self.journal.append("post")

    with ResourceRegistry.of(Binding.instance(Own, Own(journal))).open() as ctx, ctx.tool_scope() as scope:
        scope.get(Own)
    assert journal == ["+Own"]


@pytest.mark.parametrize("scope", list(Scope))
def test_alias_is_closed_by_its_owner_alone(journal: Journal, scope: Scope) -> None:
    """A provider that returns an instance bound elsewhere makes an alias: closed once, when its owner ends."""
    seen: list[object] = []
    registry = ResourceRegistry.of(single(A, journal=journal), Binding(Recorder, lambda r: r.get(A), scope))
    with registry.open() as ctx:
        ctx.observe(seen.append)
        with ctx.tool_scope() as tool:
            assert tool.get(Recorder) is tool.get(A)
            assert tool.built == ()
        assert (journal, ctx.built) == (["+A"], (ctx.get(A),))
        assert seen == [ctx.get(A)]
    assert journal == ["+A", "-A"]


def test_alias_of_an_adopted_instance_is_not_closed(journal: Journal) -> None:
    """An instance passed in is not closed under another name either."""
    registry = ResourceRegistry.of(
        Binding.instance(A, A(journal)), Binding(Recorder, lambda r: r.get(A), Scope.TOOL_CALL)
    )
    with registry.open() as ctx, ctx.tool_scope() as scope:
        scope.get(Recorder)
    assert journal == ["+A"]


def test_singleton_made_of_a_prototype_is_one_instance(journal: Journal) -> None:
    """A singleton that simply is one of the prototypes is closed once and counted as built."""
    registry = ResourceRegistry.of(
        single(A, journal=journal, scope=Scope.PROTOTYPE), Binding(Recorder, lambda r: r.get(A))
    )
    with registry.open() as ctx:
        instance = ctx.get(Recorder)
        assert ctx.built == (instance,)
    assert journal == ["+A", "-A"]


class Stubborn(Recorder):
    """Fails to close, in the way it is told to."""

    failure: BaseException = OSError("stuck")

    def close(self) -> None:
        super().close()
        raise self.failure


def test_closing_never_stops_half_way(journal: Journal) -> None:
    """All failures to close are raised as one group after everything was closed."""

    class Mule(Stubborn):
        failure = ValueError("no")

    registry = ResourceRegistry.of(
        single(A, journal=journal),
        single(Stubborn, journal=journal),
        single(B, journal=journal),
        single(Mule, journal=journal),
    )
    ctx = registry.open()
    for protocol in (A, Stubborn, B, Mule):
        ctx.get(protocol)
    with pytest.raises(ResourceCloseError) as caught:
        ctx.close()
    assert journal[4:] == ["-Mule", "-B", "-Stubborn", "-A"]
    assert caught.value.exceptions == (Mule.failure, Stubborn.failure)
    assert caught.value.message == "Mule failed to close: ValueError: no; Stubborn failed to close: OSError: stuck"


def test_close_error_is_a_resource_error_and_a_group(journal: Journal) -> None:
    """The group can be caught as ResourceError and split as a group, keeping its class."""
    with (
        pytest.raises(ResourceError) as caught,
        ResourceRegistry.of(single(Stubborn, journal=journal, eager=True)).open(),
    ):
        pass
    assert isinstance(caught.value, ExceptionGroup)
    match, rest = caught.value.split(OSError)
    assert (type(match), rest) == (ResourceCloseError, None)


def test_scope_raises_failures_to_close(journal: Journal) -> None:
    """A tool scope reports failures to close like a context does, by close and by `with`."""
    with ResourceRegistry.of(single(Stubborn, journal=journal, scope=Scope.TOOL_CALL)).open() as ctx:
        scope = ctx.tool_scope()
        scope.get(Stubborn)
        with pytest.raises(ResourceCloseError):
            scope.close()
        with pytest.raises(ResourceCloseError), ctx.tool_scope() as scope:
            scope.get(Stubborn)


def test_failure_to_close_does_not_hide_an_error(journal: Journal) -> None:
    """When the block raised, its error goes on and the failure to close is noted on it."""
    with (
        pytest.raises(KeyError) as caught,
        ResourceRegistry.of(single(Stubborn, journal=journal)).open() as ctx,
    ):
        ctx.get(Stubborn)
        raise KeyError("mine")
    assert caught.value.__notes__ == ["Stubborn failed to close: OSError: stuck"]


def test_interrupt_while_closing_waits_for_the_rest(journal: Journal) -> None:
    """Ctrl-C in a close is raised after the others are closed, whatever else failed."""

    class Interrupted(Stubborn):
        failure = KeyboardInterrupt()

    registry = ResourceRegistry.of(
        single(A, journal=journal), single(Interrupted, journal=journal), single(Stubborn, journal=journal)
    )
    ctx = registry.open()
    for protocol in (A, Interrupted, Stubborn):
        ctx.get(protocol)
    with pytest.raises(KeyboardInterrupt) as caught:
        ctx.close()
    assert journal[3:] == ["-Stubborn", "-Interrupted", "-A"]
    assert "Stubborn failed to close: OSError: stuck" in caught.value.__notes__


def test_interrupt_while_closing_overtakes_an_error(journal: Journal) -> None:
    """Ctrl-C in a close is not swallowed by an error of the block; the error becomes its cause."""

    class Interrupted(Stubborn):
        failure = KeyboardInterrupt()

    with (
        pytest.raises(KeyboardInterrupt) as caught,
        ResourceRegistry.of(single(Interrupted, journal=journal)).open() as ctx,
    ):
        ctx.get(Interrupted)
        raise KeyError("mine")
    assert isinstance(caught.value.__cause__, KeyError)


def test_closing_a_context_ends_its_open_scopes(journal: Journal) -> None:
    """Tool scopes that were left open are closed before the singletons they use."""
    registry = ResourceRegistry.of(single(A, journal=journal), single(B, A, journal=journal, scope=Scope.TOOL_CALL))
    with registry.open() as ctx:
        scope = ctx.tool_scope()
        scope.get(B)
    scope.close()
    assert (journal, scope.closed) == (["+A", "+B", "-B", "-A"], True)


def test_resources_without_close_are_left_alone() -> None:
    """A class without close, or with something else of that name, is not called."""

    class Market:
        close = "17:30"

    with ResourceRegistry.of(Binding(Market, lambda r: Market())).open() as ctx:
        assert ctx.get(Market).close == "17:30"


def test_closing_while_a_provider_runs_keeps_nothing(journal: Journal) -> None:
    """An instance finished after its context was closed is closed at once and not handed out."""
    held: list[ResourceContext] = []

    def provide(r: object) -> A:
        held[0].close()
        return A(journal)

    ctx = ResourceRegistry.of(Binding(A, provide)).open()
    held.append(ctx)
    with pytest.raises(ResourceError) as caught:
        ctx.get(A)
    assert str(caught.value) == "Cannot get A: its resources were closed meanwhile."
    assert journal == ["+A", "-A"]


# Closing asynchronously


class AsyncOnly:
    """Closes by `aclose` and remembers on which loop."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.loop: object = None

    async def aclose(self) -> None:
        self.loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        self.journal.append("aclosed")


class AsyncClose(AsyncOnly):
    """Its `close` itself is a coroutine function."""

    async def close(self) -> None:
        await self.aclose()


@pytest.mark.parametrize("cls", [AsyncOnly, AsyncClose])
def test_async_close_is_run_by_sync_code(journal: Journal, cls: type[AsyncOnly]) -> None:
    """Without a running loop an asynchronous close is run to its end."""
    with ResourceRegistry.of(Binding(cls, lambda r: cls(journal))).open() as ctx:
        ctx.get(cls)
    assert journal == ["aclosed"]


def test_async_close_is_run_beside_a_running_loop(journal: Journal) -> None:
    """Sync closing inside a coroutine runs the asynchronous close on a loop of its own."""

    async def scenario() -> bool:
        with ResourceRegistry.of(Binding(AsyncOnly, lambda r: AsyncOnly(journal))).open() as ctx:
            resource = ctx.get(AsyncOnly)
        return resource.loop is asyncio.get_running_loop()

    assert (asyncio.run(scenario()), journal) == (False, ["aclosed"])


def test_aclose_awaits_on_the_callers_loop(journal: Journal) -> None:
    """aclose() of context and scope closes asynchronous resources where they belong, sync ones as well."""

    async def scenario() -> list[bool]:
        registry = ResourceRegistry.of(
            Binding(AsyncOnly, lambda r: AsyncOnly(journal)),
            Binding(AsyncClose, lambda r: AsyncClose(journal), Scope.TOOL_CALL),
            single(A, journal=journal),
        )
        ctx = registry.open()
        ctx.get(A)
        scope = ctx.tool_scope()
        resources = [ctx.get(AsyncOnly), scope.get(AsyncClose)]
        await scope.aclose()
        await ctx.aclose()
        return [resource.loop is asyncio.get_running_loop() for resource in resources]

    assert asyncio.run(scenario()) == [True, True]
    assert journal == ["+A", "aclosed", "aclosed", "-A"]


@pytest.mark.parametrize("running", [False, True])
def test_failing_async_close_is_reported(running: bool) -> None:
    """A failure of an asynchronous close arrives in the group, with and without a running loop."""

    class Broken:
        async def aclose(self) -> None:
            raise OSError("stuck")

    def scenario() -> str:
        ctx = ResourceRegistry.of(Binding(Broken, lambda r: Broken(), eager=True)).open()
        with pytest.raises(ResourceCloseError) as caught:
            ctx.close()
        return caught.value.message

    async def within() -> str:
        return scenario()

    assert (asyncio.run(within()) if running else scenario()) == "Broken failed to close: OSError: stuck"


def test_failing_aclose_does_not_stop_the_others(journal: Journal) -> None:
    """aclose() closes everything, then raises one group."""

    async def scenario() -> None:
        ctx = ResourceRegistry.of(
            single(A, journal=journal, eager=True), single(Stubborn, journal=journal, eager=True)
        ).open()
        with pytest.raises(ResourceCloseError):
            await ctx.aclose()

    asyncio.run(scenario())
    assert journal == ["+A", "+Stubborn", "-Stubborn", "-A"]


# post_construct


class Prepared(Recorder):
    """Writes down its second step of construction, and fails there when told to."""

    failure: BaseException | None = None

    def post_construct(self) -> None:
        self.journal.append(f"*{type(self).__name__}")
        if self.failure is not None:
            raise self.failure


class Unready(Prepared):
    failure = OSError("no disk")


def test_post_construct_runs_before_handing_out(journal: Journal) -> None:
    """The second step of construction runs once, right after the provider, before a dependant sees the instance."""
    registry = ResourceRegistry.of(single(Prepared, journal=journal), single(A, Prepared, journal=journal))
    with registry.open() as ctx:
        ctx.get(A)
        ctx.get(Prepared)
        assert journal == ["+Prepared", "*Prepared", "+A"]


@pytest.mark.parametrize("scope", list(Scope))
def test_failing_post_construct_closes_the_instance(journal: Journal, scope: Scope) -> None:
    """An instance whose post_construct fails is closed at once, not kept, and the error raised, in every scope."""
    with ResourceRegistry.of(single(Unready, journal=journal, scope=scope)).open() as ctx, ctx.tool_scope() as tool:
        with pytest.raises(OSError, match=r"^no disk"):
            tool.get(Unready)
        assert (journal, tool.built, ctx.built) == (["+Unready", "*Unready", "-Unready"], (), ())
    assert journal == ["+Unready", "*Unready", "-Unready"]


def test_failing_eager_post_construct_closes_everything(journal: Journal) -> None:
    """If opening fails, all that was built is closed in reverse and the error raised."""
    registry = ResourceRegistry.of(
        single(A, journal=journal, eager=True),
        single(B, journal=journal, eager=True),
        single(Unready, journal=journal, eager=True),
    )
    with pytest.raises(OSError, match=r"^no disk"):
        registry.open()
    assert journal == ["+A", "+B", "+Unready", "*Unready", "-Unready", "-B", "-A"]


def test_failing_post_construct_closes_swallowed_prototypes(journal: Journal) -> None:
    """Prototypes built only for an instance that failed are closed with it; shared ones stay in use."""
    registry = ResourceRegistry.of(
        single(A, journal=journal),
        single(B, C, journal=journal, scope=Scope.PROTOTYPE),
        single(C, journal=journal, scope=Scope.PROTOTYPE),
        single(Unready, A, B, journal=journal),
    )
    with registry.open() as ctx:
        with pytest.raises(OSError, match=r"^no disk"):
            ctx.get(Unready)
        assert journal == ["+A", "+C", "+B", "+Unready", "*Unready", "-Unready", "-B", "-C"]
        assert ctx.built == (ctx.get(A),)


def test_failing_close_after_failing_post_construct_is_noted(journal: Journal) -> None:
    """The first error is the one raised; the failure to close is written on it."""

    class Hopeless(Stubborn, Unready):
        failure = OSError("stuck")

    with ResourceRegistry.of(single(Hopeless, journal=journal)).open() as ctx, pytest.raises(OSError) as caught:
        ctx.get(Hopeless)
    assert caught.value.__notes__ == ["while building resource Hopeless", "Hopeless failed to close: OSError: stuck"]


def test_interrupt_in_post_construct_closes_the_instance(journal: Journal) -> None:
    """Ctrl-C during construction is no special case."""

    class Interrupted(Prepared):
        failure = KeyboardInterrupt()

    with ResourceRegistry.of(single(Interrupted, journal=journal)).open() as ctx, pytest.raises(KeyboardInterrupt):
        ctx.get(Interrupted)
    assert journal == ["+Interrupted", "*Interrupted", "-Interrupted"]


# Observing


def test_built_lists_singletons_in_build_order(journal: Journal) -> None:
    """`built` holds adopted and built singletons in order, no tool-call instances, and nothing after the end."""
    registry = ResourceRegistry.of(
        single(A, B, journal=journal),
        single(B, journal=journal),
        single(C, journal=journal, scope=Scope.TOOL_CALL),
        Binding.instance(Plain, Plain()),
    )
    with registry.open() as ctx, ctx.tool_scope() as scope:
        assert ctx.built == (ctx.get(Plain),)
        a = scope.get(A)
        c = scope.get(C)
        assert (ctx.built, scope.built) == ((ctx.get(Plain), ctx.get(B), a), (c,))
        assert ctx.built is ctx.built
    assert (ctx.built, scope.built) == ((), ())


def test_one_instance_under_two_names_is_built_once() -> None:
    """An instance bound under two types appears once in `built`."""

    class Special(Plain): ...

    special = Special()
    with ResourceRegistry.build({Plain: special, Special: special}).open() as ctx:
        assert ctx.built == (special,)


def test_observer_hears_every_scope_before_handing_out(journal: Journal) -> None:
    """An observer is told of each built instance after its post_construct and before anybody gets it."""

    class Own(Prepared): ...

    registry = ResourceRegistry.of(
        single(A, Prepared, journal=journal, scope=Scope.TOOL_CALL),
        single(Prepared, journal=journal),
        single(Own, journal=journal, scope=Scope.PROTOTYPE),
        Binding.instance(Plain, Plain()),
    )
    with registry.open() as ctx:
        ctx.observe(lambda instance: journal.append(f"!{type(instance).__name__}"))
        with ctx.tool_scope() as scope:
            scope.get(A), scope.get(A), scope.get(Own), scope.get(Plain)
            assert journal == ["+Prepared", "*Prepared", "!Prepared", "+A", "!A", "+Own", "*Own", "!Own"]


def test_removed_observer_hears_nothing(journal: Journal) -> None:
    """The function returned by observe() ends that observation alone, and may be repeated."""
    heard: list[object] = []
    with ResourceRegistry.of(single(A, journal=journal)).open() as ctx:
        stop = ctx.observe(heard.append)
        ctx.observe(heard.append)
        stop()
        stop()
        ctx.get(A)
    assert len(heard) == 1


@pytest.mark.parametrize("scope", list(Scope))
def test_raising_observer_closes_the_instance(journal: Journal, scope: Scope) -> None:
    """If an observer refuses an instance it is closed, not kept, and the observer's error raised."""

    def refuse(instance: object) -> None:
        raise PermissionError("not now")

    with ResourceRegistry.of(single(A, journal=journal, scope=scope)).open() as ctx, ctx.tool_scope() as tool:
        stop = ctx.observe(refuse)
        with pytest.raises(PermissionError, match=r"^not now"):
            tool.get(A)
        assert (journal, ctx.built, tool.built) == (["+A", "-A"], (), ())
        stop()
        assert isinstance(tool.get(A), A)


def test_scope_observer_hears_of_its_own_call_alone(journal: Journal) -> None:
    """Observing a scope tells of what is built on its behalf, dependencies and singletons included."""
    registry = ResourceRegistry.of(
        single(A, B, journal=journal),
        single(B, journal=journal),
        single(C, journal=journal, scope=Scope.TOOL_CALL),
    )
    heard: list[object] = []
    with registry.open() as ctx, ctx.tool_scope() as mine, ctx.tool_scope() as other:
        stop = mine.observe(heard.append)
        other.get(C)
        assert heard == []
        expected = [mine.get(A).needs[0], mine.get(A), mine.get(C)]
        assert heard == expected
        stop()


@pytest.mark.parametrize("kind", ["context", "scope"])
def test_context_and_scope_are_views_for_transactions(journal: Journal, kind: str) -> None:
    """Either can stand where a transaction asks what is built and what gets built."""
    with ResourceRegistry.of(single(A, journal=journal)).open() as ctx, ctx.tool_scope() as scope:
        view: ResourceView = ctx if kind == "context" else scope
        heard: list[object] = []
        view.observe(heard.append)
        before = (view.built, [*heard])
        assert (before, [scope.get(A)]) == (((), []), heard)


# Protocols


def test_lifecycle_protocols_can_be_asked() -> None:
    """The four protocols tell by isinstance what a resource can do."""

    class Ledger:
        def snapshot(self) -> object:
            return None

        def restore(self, snapshot: object) -> None: ...

        def prepare(self) -> None: ...

        def commit(self) -> None: ...

        def rollback(self) -> None: ...

    assert [isinstance(Ledger(), p) for p in (Closeable, PostConstruct, Snapshotable, Participant)] == [
        False,
        False,
        True,
        True,
    ]
    assert isinstance(io.StringIO(), Closeable)
    assert isinstance(Prepared(Journal()), PostConstruct)


# Threads


@pytest.fixture
def run() -> Iterator[Callable[[Callable[[], object]], Callable[[], object]]]:
    """Start a function on a thread; the returned function waits for its result or exception."""
    threads: list[threading.Thread] = []

    def start(function: Callable[[], object]) -> Callable[[], object]:
        outcome: list[object] = []

        def work() -> None:
            try:
                outcome.append(function())
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True)
        threads.append(thread)
        thread.start()

        def wait() -> object:
            thread.join(timeout=30)
            return outcome[0] if outcome else TimeoutError("the thread is stuck")

        return wait

    yield start
    for thread in threads:
        thread.join(timeout=30)


Run = Callable[[Callable[[], object]], Callable[[], object]]


def test_threads_share_one_singleton(journal: Journal, run: Run) -> None:
    """Threads that ask at the same time get the same instance, built once."""
    count = 8
    together = threading.Barrier(count)
    with ResourceRegistry.of(single(A, journal=journal)).open() as ctx:

        def ask() -> object:
            together.wait()
            return ctx.get(A)

        waits = [run(ask) for _ in range(count)]
        assert {id(wait()) for wait in waits} == {id(ctx.get(A))}
    assert journal == ["+A", "-A"]


def test_thread_waits_for_a_singleton_under_construction(journal: Journal, run: Run) -> None:
    """A thread that asks while another builds gets that instance, not a second one."""
    inside, go = threading.Event(), threading.Event()

    def slow(r: object) -> A:
        inside.set()
        go.wait(30)
        return A(journal)

    with ResourceRegistry.of(Binding(A, slow)).open() as ctx:
        first = run(lambda: ctx.get(A))
        inside.wait(30)
        second = run(lambda: ctx.get(A))
        go.set()
        assert first() is second() is ctx.get(A)
    assert journal == ["+A", "-A"]


def test_unrelated_providers_run_side_by_side(journal: Journal, run: Run) -> None:
    """While one singleton is under construction another can be built: no lock is held over a provider."""
    meet = threading.Barrier(2)

    def meeting(cls: type[T]) -> Binding[T]:
        def provide(r: object) -> T:
            meet.wait(30)
            return cls(journal)  # type: ignore[call-arg]

        return Binding(cls, provide)

    with ResourceRegistry.of(meeting(A), meeting(B)).open() as ctx:
        one, two = run(lambda: ctx.get(A)), run(lambda: ctx.get(B))
        assert (type(one()), type(two())) == (A, B)


def test_provider_may_wait_for_a_thread_that_asks(journal: Journal, run: Run) -> None:
    """A provider that hands part of its work to another thread does not deadlock."""
    held: list[ResourceContext] = []
    registry = ResourceRegistry.of(
        Binding(A, lambda r: A(journal, run(lambda: held[0].get(B))())), single(B, journal=journal)
    )
    with registry.open() as ctx:
        held.append(ctx)
        assert ctx.get(A).needs == (ctx.get(B),)


def test_circle_across_threads_is_reported(journal: Journal, run: Run) -> None:
    """Two threads that build halves of a circle get an error each instead of a deadlock."""
    both = threading.Barrier(2)
    met = threading.Event()

    def needing(cls: type[T], need: type[object]) -> Binding[T]:
        def provide(r: Any) -> T:
            if not met.is_set():
                both.wait(30)
                met.set()
            return cls(journal, r.get(need))  # type: ignore[call-arg]

        return Binding(cls, provide)

    with ResourceRegistry.of(needing(A, B), needing(B, A)).open() as ctx:
        waits = [run(lambda: ctx.get(A)), run(lambda: ctx.get(B))]
        texts = {str(wait()) for wait in waits}
    circle = "Resources depend on each other in a circle: "
    assert texts <= {f"{circle}A -> B -> A.", f"{circle}B -> A -> B."}


def test_waiting_thread_builds_after_a_failure(journal: Journal, run: Run) -> None:
    """If the thread that builds fails, the one that waits builds for itself."""
    inside, go = threading.Event(), threading.Event()

    def first_fails(r: object) -> A:
        if not inside.is_set():
            inside.set()
            go.wait(30)
            raise ConnectionError("first")
        return A(journal)

    with ResourceRegistry.of(Binding(A, first_fails)).open() as ctx:
        first = run(lambda: ctx.get(A))
        inside.wait(30)
        second = run(lambda: ctx.get(A))
        go.set()
        assert isinstance(first(), ConnectionError)
        assert second() is ctx.get(A)


def test_closing_frees_waiting_threads(journal: Journal, run: Run) -> None:
    """A thread that waits for a singleton gets an error when the context is closed, and the late instance is closed."""
    inside, go = threading.Event(), threading.Event()

    def slow(r: object) -> A:
        inside.set()
        go.wait(30)
        return A(journal)

    ctx = ResourceRegistry.of(Binding(A, slow)).open()
    first = run(lambda: ctx.get(A))
    inside.wait(30)
    second = run(lambda: ctx.get(A))
    ctx.close()
    refused = second()
    go.set()
    assert isinstance(refused, ResourceError)
    assert str(first()) == "Cannot get A: its resources were closed meanwhile."
    assert journal == ["+A", "-A"]


def test_threads_of_one_tool_call_share_its_resources(journal: Journal, run: Run) -> None:
    """Within one tool scope threads get the same tool-call instance."""
    together = threading.Barrier(4)
    registry = ResourceRegistry.of(single(A, journal=journal, scope=Scope.TOOL_CALL))
    with registry.open() as ctx, ctx.tool_scope() as scope:

        def ask() -> object:
            together.wait()
            return scope.get(A)

        waits = [run(ask) for _ in range(4)]
        assert len({id(wait()) for wait in waits}) == 1
    assert journal == ["+A", "-A"]
