"""Opened resources: resolve, keep, close in reverse. A scope is an object you hold, not a mode of a shared one.

INVARIANTS (tests cite the numbers)
 1. Two threads that ask for one shared instance get the same one; its provider ran once.
 2. No lock is held while a provider, a `post_construct`, an observer or a `close` runs.
 3. What is handed out was post-constructed and observed; what failed on the way there is closed, and not kept.
 4. Every instance we built is closed once, in reverse build order, whatever the others do; nothing else is.
 5. Nothing that outlives a tool call holds what lives only for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from ..errors import ResourceError
from .binding import Adopted, Binding, Scope, name_of
from .lifecycle import (
    Failure,
    aclose_all,
    close_all,
    is_closeable,
    note,
    note_failures,
    post_construct,
    raise_failures,
    refuse_coroutine,
)

T = TypeVar("T")
Observer = Callable[[object], object]
Observers = dict[object, Observer]

_NOTHING: Final[dict[Any, Any]] = {}
"""What a closed scope finds; never written."""
_TOO_LATE: Final = "the tool call it was asked for has ended. Take what you need while the call runs."


class _Store:
    """The instances of one lifetime. Changed only under the context's lock."""

    __slots__ = ("building", "built", "closed", "live", "made", "ready")

    def __init__(self) -> None:
        self.ready: dict[Any, Any] = {}
        self.building: dict[Any, int] = {}
        """Which thread runs the provider of a shared binding now."""
        self.made: list[object] = []
        """What must be closed, in build order."""
        self.live: set[int] = set()
        """Identities of what is kept here: a provider that returns one of these made an alias, not an instance."""
        self.built: tuple[object, ...] = ()
        self.closed = False

    def keep(self, instances: list[object]) -> None:
        for instance in instances:
            if is_closeable(instance):
                self.made.append(instance)
                self.live.add(id(instance))

    def share(self, protocol: object, instance: object, *, borrowed: bool = False) -> None:
        self.ready[protocol] = instance
        self.live.add(id(instance))
        if not borrowed and not any(known is instance for known in self.built):
            self.built = (*self.built, instance)

    def end(self) -> list[object]:
        """Forget everything; what must be closed comes back, the first time only."""
        self.closed = True
        self.ready.clear()
        made, self.made = self.made, []
        self.live.clear()
        self.built = ()
        return made


_ENDED: Final = _Store()
_ENDED.closed = True


class _Frame:
    """A provider at work: a link in the chain of those that wait for each other on this thread."""

    __slots__ = ("binding", "context", "loose", "parent", "store", "via")

    def __init__(
        self,
        binding: Binding[Any],
        context: ResourceContext,
        store: _Store,
        via: ToolScope | None,
        parent: _Frame | None,
    ) -> None:
        self.binding = binding
        self.context = context
        self.store = store
        self.via = via
        """The tool scope on whose behalf this is built, if any."""
        self.parent = parent
        self.loose: list[object] = []
        """Prototypes this build has swallowed, then the instance itself: to be closed if the build fails."""


class _Thread(threading.local):
    # Providers are plain functions, so the chain of a thread is a stack. WHY NOT a context variable: tasks and threads
    # that a provider starts would inherit a chain they are no part of.
    frame: _Frame | None = None


_here: Final = _Thread()


def _chain(frame: _Frame | None, context: ResourceContext) -> Iterator[_Frame]:
    """The providers of `context` at work above, innermost first."""
    while frame is not None:
        if frame.context is context:
            yield frame
        frame = frame.parent


def _path(*protocols: object) -> str:
    return " -> ".join(map(name_of, protocols))


class ResourceContext:
    """Open resources of one registry. Made by `ResourceRegistry.open`, lives until `close` or the end of its `with`.

    Entering it again while it is open is fine: the outermost `with` closes it.
    """

    __slots__ = ("_bindings", "_changed", "_depth", "_lock", "_observers", "_ready", "_scopes", "_store", "_waiting")

    def __init__(self, bindings: Mapping[Any, Binding[Any]]) -> None:
        self._bindings = bindings
        # Re-entrant, so that a signal handler or finaliser that closes resources cannot deadlock on its own thread.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._store = _Store()
        self._ready = self._store.ready
        self._observers: Observers = {}
        self._scopes: dict[ToolScope, None] = {}
        """The scopes that have something to close, oldest first."""
        self._waiting: dict[int, tuple[_Store, object, _Frame | None]] = {}
        """What each blocked thread waits for, and from which frame."""
        self._depth = 0
        for protocol, binding in bindings.items():
            if isinstance(binding.provider, Adopted):
                self._store.share(protocol, binding.provider.value)
        try:
            for protocol, binding in bindings.items():
                if binding.eager:
                    self.get(protocol)
        except BaseException as error:
            note_failures(error, close_all(self._end()))
            raise

    def get(self, protocol: type[T], /) -> T:
        """The resource bound as `protocol`, built at the first access."""
        found = self._ready.get(protocol)
        if found is None:
            found = self._resolve(protocol, None)
            if found is None:
                raise self._unbound(protocol)
        return found

    def get_optional(self, protocol: type[T], /) -> T | None:
        """The resource bound as `protocol`, or None when nothing is bound as it."""
        found = self._ready.get(protocol)
        return self._resolve(protocol, None) if found is None else found

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._bindings

    def tool_scope(self) -> ToolScope:
        """Begin the resources of one tool call; the holder closes them."""
        if self._store.closed:
            raise ResourceError("Cannot begin a tool scope: these resources are closed. Open the registry again.")
        return ToolScope(self)

    @property
    def built(self) -> tuple[object, ...]:
        """The live singletons, those passed in first, then in build order."""
        return self._store.built

    @property
    def closed(self) -> bool:
        """Whether the resources have been closed."""
        return self._store.closed

    def observe(self, fn: Observer, /) -> Callable[[], None]:
        """Call `fn` with each instance of any scope just before it is first handed out; returns the way to stop."""
        return self._listen(self._observers, fn)

    def close(self) -> None:
        """Close what was built, in reverse, open tool scopes first; failures are raised as one group at the end."""
        raise_failures(close_all(self._end()))

    async def aclose(self) -> None:
        """`close` that awaits resources which close asynchronously on the caller's event loop."""
        raise_failures(await aclose_all(self._end()))

    def __enter__(self) -> ResourceContext:
        with self._lock:
            if self._store.closed:
                raise ResourceError("Cannot enter these resources: they are closed. Open the registry again.")
            self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
        _leave(error, close_all(self._end()))

    def _end(self) -> list[object]:
        with self._lock:
            made = self._store.end()
            for scope in self._scopes:
                made += scope._store.end()
            self._scopes.clear()
            self._changed.notify_all()
        return made

    def _listen(self, observers: Observers, fn: Observer) -> Callable[[], None]:
        token = object()
        with self._lock:
            observers[token] = fn

        def stop() -> None:
            with self._lock:
                observers.pop(token, None)

        return stop

    def _resolve(self, protocol: Any, scope: ToolScope | None) -> Any:
        """Find or build; None when nothing is bound."""
        if self._store.closed or (scope is not None and scope._store.closed):
            why = "these resources are closed. Open the registry again." if self._store.closed else _TOO_LATE
            raise ResourceError(f"Cannot get {name_of(protocol)}: {why}")
        binding = self._bindings.get(protocol)
        if binding is None:
            return None
        if binding.scope is Scope.SINGLETON:
            return self._shared(binding, self._store, self, scope)
        singleton = next((link for link in _chain(_here.frame, self) if link.binding.scope is Scope.SINGLETON), None)
        if binding.scope is Scope.TOOL_CALL:
            if singleton is not None:
                raise self._captured(singleton, binding)
            if scope is None:
                raise ResourceError(
                    f"Cannot get {name_of(protocol)} here: it is bound for a single tool call. "
                    "Ask a tool scope for it: with context.tool_scope() as scope."
                )
            return self._shared(binding, scope._stored(), scope, scope)
        self._refuse_cycle(binding, self._store)
        if scope is None or singleton is not None:
            return self._build(binding, self._store, self, scope)
        return self._build(binding, scope._stored(), scope, scope)

    def _shared(
        self, binding: Binding[Any], store: _Store, resolver: ResourceContext | ToolScope, via: ToolScope | None
    ) -> Any:
        """The one instance of `binding` in `store`: found, awaited from the thread that builds it, or built here."""
        self._refuse_cycle(binding, store)
        protocol, me = binding.protocol, threading.get_ident()
        with self._lock:
            while True:
                found = store.ready.get(protocol)
                if found is not None:
                    return found
                if store.closed:
                    raise self._closed_meanwhile(binding)
                if protocol not in store.building:
                    break
                self._refuse_deadlock(store, protocol, me)
                self._waiting[me] = (store, protocol, _here.frame)
                try:
                    self._changed.wait()
                finally:
                    del self._waiting[me]
            store.building[protocol] = me
        try:
            return self._build(binding, store, resolver, via)
        finally:
            with self._lock:
                del store.building[protocol]
                if self._waiting:
                    self._changed.notify_all()

    def _build(
        self, binding: Binding[Any], store: _Store, resolver: ResourceContext | ToolScope, via: ToolScope | None
    ) -> Any:
        """Run the provider; keep the instance if everything went well, close what there is of it if not."""
        parent = _here.frame
        if via is None:
            via = next((link.via for link in _chain(parent, self)), None)
        frame = _Frame(binding, self, store, via, parent)
        _here.frame = frame
        try:
            instance = binding.provider(resolver)
            if instance is None:
                raise ResourceError(
                    f"The provider of {name_of(binding.protocol)} returned None instead of an instance."
                )
            refuse_coroutine(instance, f"The provider of {name_of(binding.protocol)}")
            if not self._is_alias(instance, frame):
                frame.loose.append(instance)
                post_construct(instance)
                self._announce(instance, via)
            with self._lock:
                if store.closed:
                    raise self._closed_meanwhile(binding)
                if binding.scope is not Scope.PROTOTYPE:
                    store.keep(frame.loose)
                    borrowed = store is not self._store and id(instance) in self._store.live
                    store.share(binding.protocol, instance, borrowed=borrowed)
                elif parent is not None and parent.store is store:
                    parent.loose += frame.loose
                else:
                    store.keep(frame.loose)
            return instance
        except BaseException as error:
            note(error, f"while building resource {name_of(binding.protocol)}")
            note_failures(error, close_all(frame.loose))
            raise
        finally:
            _here.frame = parent

    def _is_alias(self, instance: object, frame: _Frame) -> bool:
        known = id(instance)
        return (
            known in self._store.live
            or known in frame.store.live
            or any(inner is instance for link in _chain(frame, self) for inner in link.loose)
        )

    def _announce(self, instance: object, via: ToolScope | None) -> None:
        if not self._observers and (via is None or not via._observers):
            return
        with self._lock:
            observers = [*self._observers.values()]
            if via is not None:
                observers += via._observers.values()
        for observer in observers:
            observer(instance)

    def _refuse_cycle(self, binding: Binding[Any], store: _Store) -> None:
        above: list[object] = [binding.protocol]
        for frame in _chain(_here.frame, self):
            above.append(frame.binding.protocol)
            if frame.binding is binding and (frame.store is store or binding.scope is Scope.PROTOTYPE):
                raise ResourceError(f"Resources depend on each other in a circle: {_path(*reversed(above))}.")

    def _refuse_deadlock(self, store: _Store, protocol: object, me: int) -> None:
        """Raise if the thread that builds `protocol` waits, directly or not, for something this thread builds."""
        path: list[object] = [protocol]
        at_store, at = store, protocol
        while (builder := at_store.building.get(at)) is not None:
            if builder == me:
                path += self._since(_here.frame, at_store, at)
                raise ResourceError(f"Resources depend on each other in a circle: {_path(*path, protocol)}.")
            if builder not in self._waiting:
                return
            next_store, next_at, frame = self._waiting[builder]
            path += [*self._since(frame, at_store, at), next_at]
            at_store, at = next_store, next_at

    def _since(self, frame: _Frame | None, store: _Store, protocol: Any) -> list[object]:
        """What a thread builds below `protocol`, outermost first."""
        below: list[object] = []
        for link in _chain(frame, self):
            if link.store is store and link.binding.protocol == protocol:
                break
            below.append(link.binding.protocol)
        return below[::-1]

    def _captured(self, singleton: _Frame, binding: Binding[Any]) -> ResourceError:
        between = self._since(_here.frame, singleton.store, singleton.binding.protocol)
        holder, wanted = name_of(singleton.binding.protocol), name_of(binding.protocol)
        return ResourceError(
            f"Singleton {holder} cannot depend on {wanted}, which lives for a single tool call "
            f"({_path(singleton.binding.protocol, *between, binding.protocol)}). "
            f"Bind {holder} with Scope.TOOL_CALL too, or {wanted} as a singleton."
        )

    def _closed_meanwhile(self, binding: Binding[Any]) -> ResourceError:
        return ResourceError(f"Cannot get {name_of(binding.protocol)}: its resources were closed meanwhile.")

    def _unbound(self, protocol: object) -> ResourceError:
        wanted = name_of(protocol)
        names = sorted(map(name_of, self._bindings), key=lambda name: (-_likeness(name, wanted), name))
        bound = f"Nearest of those bound: {', '.join(names[:5])}" if names else "Nothing is bound"
        return ResourceError(
            f"No resource is bound as {wanted}. {bound}. Bind {wanted} in the registry or in resources=."
        )


class ToolScope:
    """The resources of one tool call. Made by `ResourceContext.tool_scope`, closed by its holder."""

    __slots__ = ("_context", "_observers", "_seen", "_singletons", "_store")

    def __init__(self, context: ResourceContext) -> None:
        self._seen: tuple[object, ...] | None = None
        """The singletons a watcher knows of; None when nobody watches."""
        self._context = context
        self._singletons = context._ready
        self._store = _UNUSED
        self._observers: Observers = _NOTHING

    def get(self, protocol: type[T], /) -> T:
        """The resource bound as `protocol`: the context's, this call's own, or a new one, as its scope says."""
        if self._seen is not None and self._seen is not self._context._store.built:
            self._catch_up()
        found = self._singletons.get(protocol)
        if found is None:
            found = self._store.ready.get(protocol)
            if found is None:
                found = self._context._resolve(protocol, self)
                if found is None:
                    raise self._context._unbound(protocol)
        return found

    def get_optional(self, protocol: type[T], /) -> T | None:
        """The resource bound as `protocol`, or None when nothing is bound as it."""
        if self._seen is not None and self._seen is not self._context._store.built:
            self._catch_up()
        found = self._singletons.get(protocol)
        if found is None:
            found = self._store.ready.get(protocol)
        return self._context._resolve(protocol, self) if found is None else found

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._context

    def tool_scope(self) -> ToolScope:
        """Begin the resources of a tool call made by this one: a sibling, which shares the singletons alone."""
        return self._context.tool_scope()

    @property
    def context(self) -> ResourceContext:
        """The open resources this call takes its singletons from."""
        return self._context

    @property
    def built(self) -> tuple[object, ...]:
        """The live instances bound for this tool call, in build order. Prototypes belong to whoever asked for them."""
        return self._store.built

    @property
    def shared(self) -> tuple[object, ...]:
        """The live singletons this call shares with others."""
        return self._context._store.built

    @property
    def built_any(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._store.made)

    @property
    def closed(self) -> bool:
        """Whether the tool call has ended."""
        return self._store.closed

    def observe(self, fn: Observer, /) -> Callable[[], None]:
        """Like the context's, but `fn` hears only of what is built on behalf of this call, singletons included."""
        with self._context._lock:
            if self._observers is _NOTHING:
                self._observers = {}
        return self._context._listen(self._observers, fn)

    def watch(self, fn: Observer, /) -> None:
        """`observe` for the one holder of the scope, until it is closed: `fn` hears of what is built for this call,
        and, before it is handed out here, of each singleton that somebody else built meanwhile."""
        self._observers = {self: fn}
        self._seen = self._context._store.built

    def _catch_up(self) -> None:
        known, self._seen = self._seen or (), self._context._store.built
        for instance in self._seen:
            if not any(instance is other for other in known):
                for fn in tuple(self._observers.values()):
                    fn(instance)

    def close(self) -> None:
        """Close what this call built, in reverse; failures are raised as one group at the end."""
        made = self._end()
        if made:
            raise_failures(close_all(made))

    async def aclose(self) -> None:
        """`close` that awaits resources which close asynchronously on the caller's event loop."""
        made = self._end()
        if made:
            raise_failures(await aclose_all(made))

    def __enter__(self) -> ToolScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        made = self._end()
        if made:
            _leave(error, close_all(made))

    def _stored(self) -> _Store:
        """This call's own store, made when first needed: most calls never do."""
        context = self._context
        with context._lock:
            if self._store is _UNUSED:
                self._store = _Store()
                context._scopes[self] = None
            return self._store

    def _end(self) -> list[object] | None:
        context = self._context
        with context._lock:
            self._singletons = _NOTHING
            self._seen = None
            store = self._store
            if store is _UNUSED:
                self._store = _ENDED
                return None
            context._scopes.pop(self, None)
            context._changed.notify_all()
            return store.end()


_UNUSED: Final = _Store()


def _likeness(name: str, wanted: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, name.lower(), wanted.lower()).ratio()


def _leave(error: BaseException | None, failures: list[Failure]) -> None:
    """End a `with`: failures to close are raised, unless an error is on its way that they must not hide."""
    if error is None:
        raise_failures(failures)
    else:
        note_failures(error, failures)
