"""What a tool may be, what it refuses to be, and what it tells the pipeline and the provider."""

from __future__ import annotations

import asyncio
import copy
import datetime
import functools
import inspect
import pickle
import subprocess
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NewType, Optional, Protocol, TypedDict, TypeVar

import annotated_types
import pytest

from weakincentives.dbc import ContractError, require
from weakincentives.errors import PromptValidationError
from weakincentives.prompt.tool import Tool, ToolContext, ToolExample, ToolFunction, tool
from weakincentives.prompt.tool_result import TextBlock, ToolResult
from weakincentives.serde import ParseError, Secret

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """Parameters for a search."""

    text: str
    """What to look for."""
    limit: int = 10


@dataclass(frozen=True, slots=True)
class Hits:
    count: int

    def render(self) -> str:
        return f"{self.count} hits"


@dataclass(frozen=True, slots=True)
class ManyHits(Hits):
    pass


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Inner:
    n: int


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner


class Row(TypedDict):
    name: str


Handler = Callable[..., Any]


def search(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
    """Search the index."""
    return ToolResult.ok(Hits(params.limit), message=f"Searched for {params.text}")


async def search_later(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
    """Search the index."""
    return ToolResult.ok(Hits(params.limit))


def make(handler: Any = search, **given: Any) -> Tool[Any, Any]:
    return Tool[Query, Hits](**{"name": "search", "description": "Search.", "handler": handler, **given})


def refusal(build: Callable[[], object]) -> str:
    with pytest.raises(PromptValidationError) as caught:
        build()
    return str(caught.value)


class TestWords:
    @pytest.mark.parametrize("name", ["a", "read_file", "x-1", "0", "a" * 64])
    def test_good_names(self, name: str) -> None:
        """Lower-case letters, digits, underscore and dash, 1 to 64 of them."""
        assert make(name=name).name == name

    @pytest.mark.parametrize("name", ["", "Search", "a b", "a\n", "é", "a" * 65, "a.b", None, 3])
    def test_bad_names(self, name: object) -> None:
        """The whole name must fit, its end included."""
        assert refusal(lambda: make(name=name)) == (
            f"Tool name {name!r} is not valid: use 1 to 64 characters of a-z, 0-9, _ and -"
        )

    @pytest.mark.parametrize("description", ["x", "x" * 200])
    def test_good_descriptions(self, description: str) -> None:
        """1 to 200 characters."""
        assert make(description=description).description == description

    @pytest.mark.parametrize(
        ("description", "problem"),
        [
            ("", "must have 1 to 200 characters, it is empty"),
            (" \n", "must have 1 to 200 characters, it is empty"),
            ("x" * 201, "must have 1 to 200 characters, it has 201"),
            (None, "must be text, got NoneType"),
        ],
    )
    def test_bad_descriptions(self, description: object, problem: str) -> None:
        """The message says how long it is."""
        assert refusal(lambda: make(description=description)) == f"Tool 'search': description {problem}"

    @pytest.mark.parametrize("effects", ["none", "local", "external"])
    def test_effects_are_one_of_three_words(self, effects: str) -> None:
        """The declared effects are kept as given."""
        assert make(effects=effects).effects == effects

    def test_effects_are_local_by_default(self) -> None:
        """A tool that says nothing may write what can be rolled back."""
        assert make().effects == "local"

    def test_other_effects_are_refused(self) -> None:
        """A misspelt word never passes as a weaker promise."""
        assert refusal(lambda: make(effects="read")) == (
            "Tool 'search': effects must be one of none, local, external, got 'read'"
        )

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "3"])
    def test_bad_timeouts(self, timeout: object) -> None:
        """A timeout is a finite number above zero."""
        assert refusal(lambda: make(timeout=timeout)) == (
            f"Tool 'search': timeout must be a number of seconds above 0, got {timeout!r}"
        )

    def test_good_timeouts(self) -> None:
        """Whole and broken seconds, or none."""
        assert (make(timeout=1).timeout, make(timeout=0.5).timeout, make().timeout) == (1, 0.5, None)

    @pytest.mark.parametrize("limit", [0, -1, 1.5, True])
    def test_bad_output_limits(self, limit: object) -> None:
        """An output limit is a whole number above zero."""
        assert refusal(lambda: make(output_limit=limit)) == (
            f"Tool 'search': output_limit must be a whole number of characters above 0, got {limit!r}"
        )

    def test_compensate_needs_external_effects(self) -> None:
        """What is rolled back needs no compensation."""

        def undo(params: Query, result: ToolResult[Hits], *, context: ToolContext) -> None: ...

        assert make(effects="external", compensate=undo).compensate is undo
        assert refusal(lambda: make(compensate=undo)) == (
            "Tool 'search': compensate is for tools with effects=\"external\"; "
            'what a tool with effects="local" does is rolled back'
        )

    def test_compensate_must_take_params_and_result(self) -> None:
        """Its signature is checked like the handler's."""

        def undo(params: Query, *, context: ToolContext) -> None: ...

        assert refusal(lambda: make(effects="external", compensate=undo)) == (
            "Tool 'search': compensate must be callable as compensate(params, result, context=...): "
            "too many positional arguments"
        )
        assert refusal(lambda: make(effects="external", compensate=3)) == (
            "Tool 'search': compensate must be callable, got int"
        )


class TestTypes:
    def test_the_subscript_says_both_types(self) -> None:
        """`Tool[Params, Result]` is known at run time."""
        made = make()
        assert (made.params_type, made.result_type) == (Query, Hits)

    def test_without_subscript_the_handler_says_them(self) -> None:
        """Annotations are enough."""
        made = Tool(name="search", description="Search.", handler=search)
        assert (made.params_type, made.result_type) == (Query, Hits)

    def test_an_async_handler_says_them_too(self) -> None:
        """What an async function returns is what its annotation names."""
        made = Tool(name="search", description="Search.", handler=search_later)
        assert (made.params_type, made.result_type, made.is_async) == (Query, Hits, True)

    def test_a_type_variable_is_filled_by_the_handler(self) -> None:
        """A generic function may build tools."""

        def build(handler: Callable[..., ToolResult[T]]) -> Tool[Query, T]:
            return Tool[Query, T](name="search", description="Search.", handler=handler)

        assert build(search).result_type is Hits

    def test_types_may_be_written_as_text(self) -> None:
        """Names are looked up where the tool is built."""
        made: Any = Tool["Query", "Hits"](name="search", description="Search.", handler=search)
        assert (made.params_type, made.result_type) == (Query, Hits)

    def test_text_that_names_nothing_is_refused(self) -> None:
        """The missing name is told."""
        assert refusal(lambda: Tool["Nowhere", Hits](name="search", description="Search.")) == (  # type: ignore[name-defined]
            "Tool 'search': the type Nowhere cannot be found: name 'Nowhere' is not defined"
        )

    @pytest.mark.parametrize("arguments", [Query, (Query,), (Query, Hits, int)])
    def test_there_are_two_types(self, arguments: Any) -> None:
        """One or three are a mistake."""
        with pytest.raises(TypeError) as caught:
            Tool.__class_getitem__(arguments)
        assert str(caught.value) == (
            "A tool has two types: Tool[Params, Result]; write None for the one it does not have"
        )

    def test_the_subscript_is_an_ordinary_alias(self) -> None:
        """It works in annotations, unions and for typing's own tools."""
        alias = Tool[Query, Hits]
        assert (typing.get_origin(alias), typing.get_args(alias)) == (Tool, (Query, Hits))
        assert Optional[alias] == alias | None  # noqa: UP045

    @pytest.mark.parametrize("params", [int, str, dict, Row, Query | None, list[Query], Any])
    def test_params_must_be_a_dataclass(self, params: Any) -> None:
        """A provider's arguments are an object with named fields."""
        built = refusal(lambda: Tool[params, Hits](name="x", description="X."))
        assert built.startswith("Tool 'x': params must be a dataclass or None, got ")

    def test_an_instance_is_no_type(self) -> None:
        """A dataclass object in the place of its class is refused."""
        assert refusal(lambda: Tool[Query("a"), Hits](name="x", description="X.")) == (  # type: ignore[misc]
            "Tool 'x': params must be a dataclass or None, got Query(text='a', limit=10)"
        )

    def test_a_generic_dataclass_can_be_params(self) -> None:
        """Its arguments decide what is parsed."""
        made = Tool[Page[int], None](name="x", description="X.")
        assert made.parse('{"items": [1, 2]}') == Page((1, 2))

    @pytest.mark.parametrize(
        "result",
        [
            *(
                None,
                str,
                int,
                float,
                bool,
                Hits,
                Page[int],
                dict,
                dict[str, int],
                Mapping[str, object],
                Row,
                Any,
                object,
            ),
            *(list, list[str], list[Hits], tuple[Hits, ...], tuple[int, str], Sequence[str], frozenset[str]),
            *(Hits | None, Hits | str, Literal["a", "b"], NewType("Id", str), Annotated[str, "text"], datetime.date),
            *(TextBlock, tuple[TextBlock, ...]),
        ],
    )
    def test_result_types(self, result: Any) -> None:
        """Whatever text can be made of can be a result."""
        assert Tool[Query, result](name="x", description="X.").name == "x"

    @pytest.mark.parametrize(
        ("result", "culprit"),
        [
            (bytes, "bytes"),
            (type(sys), "module"),
            (list[bytes], "bytes"),
            (Hits | complex, "complex"),
            (Callable[[], int], "Callable[[], int]"),
            (type, "type"),
        ],
    )
    def test_result_types_without_text(self, result: Any, culprit: str) -> None:
        """The part that cannot be shown is named."""
        assert refusal(lambda: Tool[Query, result](name="x", description="X.")) == (
            "Tool 'x': result must be a dataclass, text, a number, a mapping, a list or tuple of these, or None, "
            f"got {culprit}"
        )

    @pytest.mark.parametrize("which", ["params", "result"])
    def test_a_field_type_that_cannot_be_found_is_refused(self, which: str) -> None:
        """The class and the field are named."""

        @dataclass
        class Odd:
            good: int
            bad: Nowhere  # type: ignore[name-defined] # noqa: F821

        types: Any = (Odd, Hits) if which == "params" else (Query, list[Odd])
        assert refusal(lambda: Tool[types](name="x", description="X.")) == (
            f"Tool 'x': Cannot resolve the type of {Odd.__qualname__}.bad: "
            "the name 'Nowhere' is not defined where the class is"
        )

    def test_field_types_may_be_local_to_the_building_function(self) -> None:
        """Names are looked up where the tool is built."""

        @dataclass
        class Inner:
            n: int

        @dataclass
        class Outer:
            inner: Inner

        made = Tool[Outer, Inner](name="x", description="X.")
        assert made.parse('{"inner": {"n": 1}}') == Outer(Inner(1))

    def test_a_name_where_the_tool_is_built_does_not_hide_a_field_type(self) -> None:
        """A class means the names it was written among."""
        Inner = Query  # noqa: F841 - the clash is the point
        made = Tool[Outer, Outer](name="x", description="X.")
        assert made.parse('{"inner": {"n": 1}}').inner.n == 1

    def test_a_subclass_of_a_dataclass_is_one(self) -> None:
        """Also without a decorator of its own."""

        class Special(Query):
            pass

        made = Tool[Special, Special](name="x", description="X.")
        assert type(made.parse('{"text": "a"}')) is Special

    def test_without_any_word_about_types_it_is_refused(self) -> None:
        """Nothing is guessed."""

        def bare(params, *, context): ...  # type: ignore[no-untyped-def]

        def half(params: Query, *, context: ToolContext): ...  # type: ignore[no-untyped-def]

        how = "write Tool[Params, Result](…) or annotate the handler"
        assert refusal(lambda: Tool(name="x", description="X.")) == f"Tool 'x': cannot tell its params type: {how}"
        assert refusal(lambda: Tool(name="x", description="X.", handler=bare)) == (
            f"Tool 'x': cannot tell its params type: {how}"
        )
        assert refusal(lambda: Tool(name="x", description="X.", handler=half)) == (
            f"Tool 'x': cannot tell its result type: {how}"
        )


class TestHandler:
    def test_a_tool_without_handler_is_legal(self) -> None:
        """It can be shown to the model; calling it is the pipeline's matter."""
        made = Tool[Query, Hits](name="x", description="X.")
        assert (made.handler, made.is_async) == (None, False)

    def test_sync_and_async_are_told_apart(self) -> None:
        """The pipeline need not ask at every call."""
        assert (make(search).is_async, make(search_later).is_async) == (False, True)

    def test_callable_objects_methods_and_partials_serve(self) -> None:
        """Whatever can be called as a handler is one."""

        class Service:
            def method(self, params: Query, *, context: ToolContext) -> ToolResult[Hits]:
                return ToolResult.ok(Hits(0))

            async def __call__(self, params: Query, *, context: ToolContext) -> ToolResult[Hits]:
                return ToolResult.ok(Hits(0))

        def more(index: str, params: Query, *, context: ToolContext) -> ToolResult[Hits]:
            return ToolResult.ok(Hits(0))

        service = Service()
        assert [make(it).is_async for it in (service.method, service, functools.partial(more, "main"))] == [
            False,
            True,
            False,
        ]

    @pytest.mark.parametrize(
        "handler",
        [
            lambda params, context: None,
            lambda params, /, *, context=None: None,
            lambda params, **keywords: None,
            lambda *args, **keywords: None,
            lambda params, context, extra=3: None,
        ],
    )
    def test_context_need_only_be_passable_by_keyword(self, handler: Handler) -> None:
        """Every signature that takes the call is fine."""
        assert make(handler).handler is handler

    @pytest.mark.parametrize(
        ("handler", "why"),
        [
            (lambda params: None, "got an unexpected keyword argument 'context'"),
            (lambda *, context: None, "too many positional arguments"),
            (lambda params, other, *, context: None, "missing a required argument: 'other'"),
            (lambda context, params: None, "multiple values for argument 'context'"),
            (lambda params, context, /: None, None),
        ],
    )
    def test_a_handler_that_cannot_take_the_call_is_refused(self, handler: Handler, why: str | None) -> None:
        """The message shows the call it must take, and why it does not."""
        told = refusal(lambda: make(handler))
        assert told.startswith("Tool 'search': handler must be callable as handler(params, context=...): ")
        assert why is None or told.endswith(why)

    def test_a_handler_must_be_callable(self) -> None:
        """Text is no handler."""
        assert refusal(lambda: make("search")) == "Tool 'search': handler must be callable, got str"

    def test_a_handler_returns_and_does_not_yield(self) -> None:
        """Generators are refused, sync and async."""

        def each(params: Query, *, context: ToolContext) -> Any:
            yield 1

        async def later(params: Query, *, context: ToolContext) -> Any:
            yield 1

        rest = "function; return one ToolResult instead of yielding"
        assert refusal(lambda: make(each)) == f"Tool 'search': handler is a generator {rest}"
        assert refusal(lambda: make(later)) == f"Tool 'search': handler is an async generator {rest}"

    def test_annotated_params_must_take_the_declared_ones(self) -> None:
        """Both types are named."""

        def other(params: Hits, *, context: ToolContext) -> ToolResult[Hits]:
            return ToolResult.ok(params)

        assert refusal(lambda: make(other)) == (
            "Tool 'search': handler takes params of type Hits, but the tool has Query"
        )
        assert refusal(lambda: Tool[None, Hits](name="x", description="X.", handler=other)) == (
            "Tool 'x': handler takes params of type Hits, but the tool has None"
        )

    def test_annotated_result_must_fit_the_declared_one(self) -> None:
        """Both types are named."""

        def other(params: Query, *, context: ToolContext) -> ToolResult[list[str]]:
            return ToolResult.ok([])

        assert refusal(lambda: make(other)) == (
            "Tool 'search': handler returns ToolResult[list[str]], but the tool has Hits"
        )

    def test_what_is_no_tool_result_is_refused(self) -> None:
        """A handler that forgot to wrap its value is caught at once."""

        def other(params: Query, *, context: ToolContext) -> Hits:
            return Hits(0)

        assert refusal(lambda: make(other)) == (
            "Tool 'search': handler must return a ToolResult, but its annotation says Hits"
        )

    def test_wider_params_and_narrower_results_fit(self) -> None:
        """The usual rules of subtyping hold."""

        def wide(params: Query | None, *, context: ToolContext) -> ToolResult[ManyHits]:
            return ToolResult.ok(ManyHits(1))

        def widest(params: object, *, context: ToolContext) -> ToolResult[Hits] | ToolResult[ManyHits]:
            return ToolResult.ok(Hits(1))

        def waiting(params: Query, *, context: ToolContext) -> Awaitable[ToolResult[Hits]]:
            return search_later(params, context=context)

        assert [make(handler).handler for handler in (wide, widest, waiting)] == [wide, widest, waiting]

    @pytest.mark.parametrize(
        ("gives", "declared"),
        [
            (dict[str, int], Mapping[str, object]),
            (list[ManyHits], list[Hits]),
            (tuple[str, ...], Sequence[str]),
            (int, float),
            (Literal["a"], str),
            (Literal["a"], Literal["a", "b"]),
            (Row, dict[str, Any]),
            (Hits, Hits | None),
            (None, Hits | None),
        ],
    )
    def test_results_that_fit(self, gives: Any, declared: Any) -> None:
        """A value of the one may stand where the other is promised."""

        def handler(params: Query, *, context: ToolContext) -> Any: ...

        handler.__annotations__["return"] = ToolResult[gives]
        assert Tool[Query, declared](name="x", description="X.", handler=handler).handler is handler

    @pytest.mark.parametrize(
        ("gives", "declared"),
        [
            *((dict[str, str], Mapping[str, int]), (list[str], list[Hits]), (str, int), (None, Hits), (Hits, None)),
            *(
                (Hits | None, Hits),
                (Literal["c"], Literal["a", "b"]),
                (str, Literal["a"]),
                (list[str], tuple[str, ...]),
            ),
        ],
    )
    def test_results_that_do_not_fit(self, gives: Any, declared: Any) -> None:
        """Also inside containers and unions."""

        def handler(params: Query, *, context: ToolContext) -> Any: ...

        handler.__annotations__["return"] = ToolResult[gives]
        told = refusal(lambda: Tool[Query, declared](name="x", description="X.", handler=handler))
        assert told.startswith("Tool 'x': handler returns ToolResult[")

    def test_missing_and_unresolvable_annotations_are_not_checked(self) -> None:
        """Only what is known to be wrong is refused."""

        def bare(params, *, context): ...  # type: ignore[no-untyped-def]

        def lost(params: Nowhere, *, context: ToolContext) -> ToolResult[Nowhere]: ...  # type: ignore[name-defined] # noqa: F821

        def plain(params: Any, *, context: Any) -> ToolResult: ...  # type: ignore[type-arg]

        assert [make(handler).handler for handler in (bare, lost, plain)] == [bare, lost, plain]

    def test_what_cannot_be_judged_is_not_judged(self) -> None:
        """Type variables, protocols without run-time checks, and callables that do not tell their signature."""

        class Counted(Protocol):
            count: int

        def generic(params: T, *, context: ToolContext) -> ToolResult[T]: ...  # type: ignore[empty-body]

        def loose(params: Query, *, context: ToolContext) -> ToolResult[Hits]: ...  # type: ignore[empty-body]

        assert make(generic).handler is generic
        assert make(min).handler is min
        loose.__annotations__["params"] = Counted
        assert make(loose).handler is loose

    def test_every_member_of_a_union_must_be_a_tool_result(self) -> None:
        """A handler may not return something else now and then."""

        def other(params: Query, *, context: ToolContext) -> ToolResult[Annotated[Hits, "all"]] | str:
            return ""

        assert refusal(lambda: make(other)) == (
            "Tool 'search': handler must return a ToolResult, but its annotation says ToolResult[Hits] | str"
        )

    def test_annotations_are_resolved_by_local_names(self) -> None:
        """Classes of the building function are found, also where a global has the same name."""

        @dataclass
        class Query:
            n: int

        def local(params: Query, *, context: ToolContext) -> ToolResult[Query]:
            return ToolResult.ok(params)

        made = Tool(name="x", description="X.", handler=local)
        assert (made.params_type, made.result_type) == (Query, Query)

    def test_a_name_where_the_tool_is_built_does_not_hide_the_handlers_own(self) -> None:
        """A handler from elsewhere means its own module's types."""
        Query = Hits
        made = Tool(name="x", description="X.", handler=search)
        assert made.params_type is not Query

    def test_the_type_arguments_are_known_by_name(self) -> None:
        """A handler whose types were imported for the type checker only is still checked against them."""

        def lost(params: Renamed, *, context: ToolContext) -> ToolResult[Hits]: ...  # type: ignore[name-defined] # noqa: F821

        renamed = dataclass(type("Renamed", (), {"__annotations__": {"n": int}}))
        made: Any = Tool[renamed, Hits](name="x", description="X.", handler=lost)
        assert made.params_type is renamed


class TestExamples:
    def example(self, **changes: Any) -> ToolExample[Any, Any]:
        return ToolExample(**{"description": "One", "input": Query("a"), "output": Hits(1), **changes})

    def test_examples_are_kept_in_order(self) -> None:
        """Any sequence is taken and becomes a tuple."""
        first, second = self.example(), self.example(description="Two")
        assert make(examples=[first, second]).examples == (first, second)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"input": Hits(1)}, "input must be of type Query, got Hits"),
            ({"input": None}, "input must be of type Query, got None"),
            ({"output": "1"}, "output must be of type Hits, got str"),
            ({"output": None}, "output must be of type Hits, got None"),
            ({"description": ""}, "description must have 1 to 200 characters, it is empty"),
            ({"description": "x" * 201}, "description must have 1 to 200 characters, it has 201"),
        ],
    )
    def test_a_wrong_example_is_refused(self, changes: dict[str, Any], problem: str) -> None:
        """Which example, which part, and what it must be."""
        examples = [self.example(), self.example(**changes)]
        assert refusal(lambda: make(examples=examples)) == f"Tool 'search': examples[1].{problem}"

    def test_only_examples_are_examples(self) -> None:
        """Neither other things in the sequence nor something else than a sequence."""
        assert refusal(lambda: make(examples=["a"])) == ("Tool 'search': examples[0] must be a ToolExample, got str")
        assert refusal(lambda: make(examples=3)) == (
            "Tool 'search': examples must be a sequence of ToolExample, got int"
        )

    def test_examples_of_a_tool_without_params_and_result(self) -> None:
        """None is the instance of None."""
        made = Tool[None, None](name="x", description="X.", examples=[ToolExample("Just call it", None, None)])
        assert made.spec()["examples"] == [{"description": "Just call it", "input": {}, "output": None}]


class TestParse:
    def test_json_text_bytes_and_mappings_become_params(self) -> None:
        """All forms in which arguments come."""
        made = make()
        given: list[Any] = ['{"text": "a", "limit": 3}', b'{"text": "a", "limit": 3}', {"text": "a", "limit": 3}]
        assert [made.parse(arguments) for arguments in given] == [Query("a", 3)] * 3

    def test_every_problem_is_told(self) -> None:
        """One entry per bad field."""
        with pytest.raises(ParseError) as caught:
            make().parse({"limit": "10", "more": 1})
        assert set(caught.value.details) == {"text", "limit", "more"}
        assert caught.value.details["limit"] == "Expected type integer, got string '10'"

    def test_no_arguments_are_an_empty_object(self) -> None:
        """None stands for a call without arguments; what is required is missed by name."""
        with pytest.raises(ParseError) as caught:
            make().parse(None)
        assert set(caught.value.details) == {"text"}

    @pytest.mark.parametrize("arguments", [None, {}, "", " \n", "{}", "{ }", "null", b"", b"{}", b" null "])
    def test_a_tool_without_params_takes_nothing(self, arguments: Any) -> None:
        """However nothing is written."""
        assert Tool[None, str](name="x", description="X.").parse(arguments) is None

    @pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}', "[]", "0", "nul", b"\xff", [], 0, False])
    def test_a_tool_without_params_takes_nothing_else(self, arguments: Any) -> None:
        """And says so."""
        with pytest.raises(ParseError) as caught:
            Tool[None, str](name="x", description="X.").parse(arguments)
        assert caught.value.details == {"$": "This tool takes no parameters; retry with {}"}

    def test_the_parser_is_kept(self) -> None:
        """It is built at first use, once."""
        made = make()
        assert made.parser is made.parser is not None
        assert Tool[None, str](name="x", description="X.").parser is None


class TestSchema:
    def test_schema_of_the_params(self) -> None:
        """Types, defaults, descriptions, and no other fields."""
        assert make().schema() == {
            "type": "object",
            "description": "Parameters for a search.",
            "properties": {
                "text": {"type": "string", "description": "What to look for."},
                "limit": {"type": "integer", "default": 10},
            },
            "required": ["text"],
            "additionalProperties": False,
        }

    def test_schema_without_params(self) -> None:
        """An object without fields."""
        assert Tool[None, str](name="x", description="X.").schema() == {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }

    def test_a_schema_can_be_changed_by_its_caller(self) -> None:
        """It is a new one each time."""
        made = make()
        made.schema()["properties"].clear()
        assert set(made.schema()["properties"]) == {"text", "limit"}

    def test_spec_is_what_a_provider_is_told(self) -> None:
        """Examples only where there are some, as JSON."""
        made = make(examples=[ToolExample("One", Query("a"), Hits(1))])
        assert made.spec() == {
            "name": "search",
            "description": "Search.",
            "parameters": made.schema(),
            "examples": [{"description": "One", "input": {"text": "a", "limit": 10}, "output": {"count": 1}}],
        }
        assert "examples" not in make().spec()

    def test_secrets_in_examples_stay_secret(self) -> None:
        """A provider is never told the secret of an example."""

        @dataclass
        class Login:
            token: Annotated[str, Secret]

        made = Tool[Login, None](name="x", description="X.", examples=[ToolExample("One", Login("s3cret"), None)])
        assert made.spec()["examples"][0]["input"] == {"token": "[redacted]"}


class TestResultCheck:
    @pytest.mark.parametrize(
        ("declared", "good", "bad"),
        [
            (Hits, [Hits(1), ManyHits(1)], ["1", {"count": 1}]),
            (Page[int], [Page((1,))], [Hits(1)]),
            (str, ["", "a"], [1, b"a"]),
            (int, [1], [True, 1.0]),
            (float, [1.0, 1], [True, "1"]),
            (bool, [True], [1]),
            (dict[str, int], [{}, {"a": 1}], [[], "a"]),
            (Mapping[str, int], [{}], [[]]),
            (Row, [{"name": "a"}], ["a"]),
            (list[str], [[], ["a"]], [("a",), "a", ["a", 1]]),
            (list, [[1, "a"]], [()]),
            (Sequence[str], [["a"], ("a",)], ["a", {"a": 1}, [1]]),
            (tuple[Hits, ...], [(), (Hits(1),)], [[Hits(1)], (1,)]),
            (tuple[int, str], [(1, "a")], [(1,), ("a", 1), (1, "a", 2), [1, "a"]]),
            (frozenset[str], [frozenset({"a"})], [{"a"}, frozenset({1})]),
            (Hits | str, [Hits(1), "a"], [1]),
            (Literal["a", 1], ["a", 1], ["b", True]),
            (None, [], [1, ""]),
            (Any, [1, "a", object()], []),
        ],
    )
    def test_a_value_is_of_the_declared_type_or_not(self, declared: Any, good: list[Any], bad: list[Any]) -> None:
        """Containers are checked with their items."""
        made = Tool[Query, declared](name="x", description="X.")
        assert [made.result_check(value) for value in good] == [None] * len(good)
        assert None not in [made.result_check(value) for value in bad]

    def test_the_text_names_what_was_expected(self) -> None:
        """And what came instead."""
        made = Tool[Query, list[Hits] | None](name="x", description="X.")
        assert made.result_check("a") == "tool 'x' must return a value of type list[Hits] | None, got str"

    def test_no_value_is_always_fine(self) -> None:
        """A success may have nothing but a message."""
        assert make().result_check(None) is None


class TestToolItself:
    def test_it_never_changes(self) -> None:
        """A tool in use by many sessions cannot be altered under them."""
        made = make()
        with pytest.raises(AttributeError) as caught:
            made.name = "other"
        assert str(caught.value) == "A Tool does not change: cannot set 'name' of 'search'"
        with pytest.raises(AttributeError) as caught:
            del made.name
        assert str(caught.value) == "A Tool does not change: cannot delete 'name' of 'search'"

    def test_a_copy_is_the_tool_itself(self) -> None:
        """What never changes need not be copied."""
        made = make()
        assert copy.copy(made) is made
        assert copy.deepcopy([made])[0] is made

    def test_repr_says_name_and_types(self) -> None:
        """Short enough for a log."""
        assert repr(make()) == "<Tool search: Query -> Hits>"

    def test_calling_it_hands_over_to_the_pipeline(self) -> None:
        """The context decides how a tool is run."""

        class Recorder(ToolContext):
            def __init__(self) -> None: ...

            def run(self, tool: Any, params: object) -> Any:
                return ToolResult.ok((tool, params))

        made, params, context = make(), Query("a"), Recorder()
        assert made(params, context=context).value == (made, params)
        assert made.run(params, context=context).value == (made, params)

    def test_tools_are_compared_by_identity(self) -> None:
        """Two tools alike are two tools."""
        assert len({make(), make()}) == 2

    def test_building_tools_does_not_load_pydantic(self) -> None:
        """The engine is loaded when the first call is parsed."""
        program = (
            "import sys, dataclasses\n"
            "from weakincentives.prompt.tool import Tool\n"
            "P = dataclasses.make_dataclass('P', [('n', int)])\n"
            "made = Tool[P, str](name='x', description='X.')\n"
            "made.spec()\n"
            "print([name for name in sys.modules if name.startswith('pydantic')])\n"
            "made.parse('{\"n\": 1}')\n"
            "print('pydantic_core' in sys.modules)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert run.stdout.split("\n")[:2] == ["[]", "True"]


class TestWithDescription:
    def test_descriptions_change_in_a_copy(self) -> None:
        """The original keeps its own."""
        made = make()
        other = made.with_description("Find.", param_descriptions={"limit": "At most so many."})
        assert (other.description, made.description) == ("Find.", "Search.")
        assert other.schema()["properties"]["limit"] == {
            "type": "integer",
            "default": 10,
            "description": "At most so many.",
        }
        assert "description" not in made.schema()["properties"]["limit"]

    def test_all_else_stays(self) -> None:
        """Handler, types and limits are those of the original."""
        made = make(timeout=3, effects="none")
        other = made.with_description("Find.")
        kept = ("name", "handler", "params_type", "result_type", "timeout", "effects", "examples", "is_async")
        assert [getattr(other, each) for each in kept] == [getattr(made, each) for each in kept]
        assert other.parse('{"text": "a"}') == Query("a")

    def test_changes_add_up(self) -> None:
        """Describing again keeps what was described before."""
        other = (
            make()
            .with_description(param_descriptions={"text": "A"})
            .with_description(param_descriptions={"limit": "B"})
        )
        described = {name: each["description"] for name, each in other.schema()["properties"].items()}
        assert (other.description, described) == ("Search.", {"text": "A", "limit": "B"})

    def test_the_same_rules_hold(self) -> None:
        """Length of the description, names of the parameters."""
        assert refusal(lambda: make().with_description("")) == (
            "Tool 'search': description must have 1 to 200 characters, it is empty"
        )
        assert refusal(lambda: make().with_description(param_descriptions={"nope": "A"})) == (
            "Tool 'search': no parameter 'nope' to describe; it has: text, limit"
        )
        nothing = Tool[None, str](name="x", description="X.")
        assert refusal(lambda: nothing.with_description(param_descriptions={"nope": "A"})) == (
            "Tool 'x': no parameter 'nope' to describe; it has: none"
        )

    def test_a_decorated_function_stays_callable(self) -> None:
        """The copy is of the same kind."""
        other: Any = double.with_description("Twice.")
        assert (other(4), other.description) == (8, "Twice.")


@tool
def double(n: Annotated[int, annotated_types.Ge(0)], *, note: str = "") -> int:
    """Double a number.

    More about it.

    Args:
        n: What to double.
        note: Why.
    """
    return 2 * n


class TestDecorator:
    def test_it_derives_all_from_the_function(self) -> None:
        """Name, first line, parameters with their descriptions and constraints, and the result's type."""
        assert isinstance(double, Tool)
        assert (double.name, double.description, double.result_type) == ("double", "Double a number.", int)
        assert double.schema() == {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 0, "description": "What to double."},
                "note": {"type": "string", "default": "", "description": "Why."},
            },
            "required": ["n"],
            "additionalProperties": False,
        }

    def test_the_function_stays_callable_as_before(self) -> None:
        """A plain call is a plain call."""
        assert double(4, note="x") == 8

    def test_the_function_is_still_described(self) -> None:
        """Name, module, docstring and signature are the function's."""
        assert (double.__name__, double.__module__, double.__qualname__) == ("double", __name__, "double")
        assert (double.__doc__ or "").startswith("Double a number.")
        assert list(inspect.signature(double).parameters) == ["n", "note"]

    def test_its_handler_takes_params_and_returns_a_result(self) -> None:
        """What the pipeline runs."""
        handler: Any = double.handler
        assert handler(double.parse('{"n": 4}'), context=None) == ToolResult.ok(8)

    def test_its_params_can_be_stored_and_found_again(self) -> None:
        """The made dataclass is found by module and name, as pickle and the durable log do it."""
        params = double.parse('{"n": 4}')
        assert pickle.loads(pickle.dumps(params)) == params
        assert double.Params is type(params)

    def test_handler_style(self) -> None:
        """A function that takes its params as one object and returns a ToolResult is the handler itself."""

        @tool(name="find", description="Find.", effects="none", timeout=2, output_limit=9, accepts_overrides=False)
        def look(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
            return ToolResult.ok(Hits(params.limit))

        assert (look.name, look.description, look.effects, look.timeout) == ("find", "Find.", "none", 2)
        assert (look.output_limit, look.accepts_overrides) == (9, False)
        assert (look.params_type, look.result_type) == (Query, Hits)
        context: Any = None
        assert look(Query("a"), context=context) == ToolResult.ok(Hits(10))
        assert look.handler is look.__wrapped__  # type: ignore[attr-defined]

    def test_async_functions(self) -> None:
        """They stay async, as a function and as a handler."""

        @tool
        async def triple(n: int) -> int:
            """Triple."""
            return 3 * n

        handler: Any = triple.handler
        assert triple.is_async
        assert asyncio.run(triple(2)) == 6
        assert asyncio.run(handler(triple.parse('{"n": 3}'), context=None)) == ToolResult.ok(9)

    def test_the_context_is_passed_on_if_asked_for(self) -> None:
        """It is no parameter of the tool."""

        @tool
        def who(greeting: str, /, mark: str = "!", *, context: ToolContext) -> str:
            """Who."""
            return f"{greeting} {context}{mark}"

        handler: Any = who.handler
        assert set(who.schema()["properties"]) == {"greeting", "mark"}
        assert handler(who.parse({"greeting": "hi"}), context="ctx").value == "hi ctx!"

    def test_a_plain_function_may_return_a_tool_result(self) -> None:
        """It is passed on, and its value's type is the tool's."""

        @tool
        def half(n: int) -> ToolResult[int]:
            """Halve."""
            return ToolResult.ok(n // 2) if n % 2 == 0 else ToolResult.error("odd")

        handler: Any = half.handler
        assert half.result_type is int
        assert handler(half.parse({"n": 3}), context=None) == ToolResult.error("odd")

    def test_a_params_object_may_give_a_plain_value(self) -> None:
        """The only parameter, called params and a dataclass, is the params; the context may be left out."""

        @tool
        def count(params: Query) -> int:
            """Count."""
            return params.limit

        handler: Any = count.handler
        assert count.params_type is Query
        assert handler(Query("a"), context=None) == ToolResult.ok(10)

    def test_a_dataclass_parameter_is_a_parameter(self) -> None:
        """In a plain function it is one field among possible others."""

        @tool
        def save(query: Query) -> str:
            """Save."""
            return query.text

        assert set(save.schema()["properties"]) == {"query"}

    def test_no_parameters_no_params(self) -> None:
        """The tool takes None."""

        @tool
        def ping() -> str:
            """Ping."""
            return "pong"

        handler: Any = ping.handler
        assert ping.params_type is None
        assert handler(ping.parse(""), context=None) == ToolResult.ok("pong")

    def test_mutable_defaults_are_not_shared(self) -> None:
        """Each call has its own list."""

        @tool
        def collect(n: int, into: list[int] = []) -> list[int]:  # noqa: B006 - the point
            """Collect."""
            into.append(n)
            return into

        handler: Any = collect.handler
        assert [handler(collect.parse({"n": n}), context=None).value for n in (1, 2)] == [[1], [2]]

    def test_local_types_are_found(self) -> None:
        """Also when the function and its types are made inside another function."""

        @dataclass
        class Point:
            x: int

        @tool
        def move(point: Point, by: int = 1) -> Point:
            """Move."""
            return Point(point.x + by)

        handler: Any = move.handler
        assert handler(move.parse({"point": {"x": 1}}), context=None).value == Point(2)

    def test_examples_may_give_a_mapping(self) -> None:
        """The made dataclass has no name yet where the examples are written."""

        @tool(examples=[ToolExample("Next day", {"day": datetime.date(2026, 1, 31)}, datetime.date(2026, 2, 1))])
        def after(day: datetime.date, days: int = 1) -> datetime.date:
            """Go on."""
            return day + datetime.timedelta(days)

        assert after.examples[0].input == after.Params(day=datetime.date(2026, 1, 31))  # type: ignore[misc]
        assert after.spec()["examples"][0]["input"] == {"day": "2026-01-31", "days": 1}

    def test_a_mapping_that_does_not_fit_is_refused(self) -> None:
        """An example that the tool would refuse would mislead the model."""

        def once(n: int) -> int:
            """Once."""
            return n

        assert refusal(lambda: tool(examples=[ToolExample("One", {"n": "1"}, 1)])(once)) == (
            "Tool 'once': examples[0].input does not fit the parameters: n: Expected type integer, got string '1'"
        )
        assert refusal(lambda: tool(examples=[ToolExample("One", 1, 1)])(once)) == (
            "Tool 'once': examples[0].input must be of type OnceParams, got int"
        )
        wrong: Any = ["One"]
        assert refusal(lambda: tool(examples=wrong)(once)) == (
            "Tool 'once': examples[0] must be a ToolExample, got str"
        )

    def test_context_must_be_passable_by_keyword(self) -> None:
        """That is how it is passed."""

        def odd(n: int, context: ToolContext, /) -> int:
            """Odd."""
            return n

        assert refusal(lambda: tool(odd)) == "Tool 'odd': context must be passable by keyword"

    def test_contracts_hold_on_decorated_functions(self) -> None:
        """`@require` below `@tool` is seen through for the signature and still checks the call."""

        @tool
        @require(lambda n: n > 0, "n must be positive")
        def root(n: int) -> float:
            """Root."""
            return n**0.5

        assert set(root.schema()["properties"]) == {"n"}
        with pytest.raises(ContractError, match="Precondition failed: n must be positive"):
            root(-1)

    def test_what_it_cannot_derive_it_refuses(self) -> None:
        """Each message says what to add."""

        def no_doc(n: int) -> int: ...  # type: ignore[empty-body]

        def no_return(n: int):  # type: ignore[no-untyped-def]
            """Doc."""

        def no_type(n) -> int:  # type: ignore[no-untyped-def]
            """Doc."""
            return 1

        def lost(n: Nowhere) -> int:  # type: ignore[name-defined] # noqa: F821
            """Doc."""
            return 1

        def stars(*names: str) -> int:
            """Doc."""
            return 1

        def method(self, n: int) -> int:  # type: ignore[no-untyped-def]
            """Doc."""
            return n

        def Upper(n: int) -> int:
            """Doc."""
            return n

        told = {each.__name__: refusal(lambda each=each: tool(each)) for each in (no_doc, no_return, no_type, lost)}
        assert told == {
            "no_doc": "Tool 'no_doc': give the function a docstring, or description=",
            "no_return": "Tool 'no_return': annotate what the function returns",
            "no_type": "Tool 'no_type': parameter 'n' has no annotation",
            "lost": "Tool 'lost': parameter 'n' is annotated 'Nowhere', which cannot be found",
        }
        assert refusal(lambda: tool(stars)) == "Tool 'stars': a tool cannot take '*names: 'str'': name each parameter"
        assert refusal(lambda: tool(method)) == (
            "Tool 'method': a method becomes a tool through its object: Tool.wrap(instance.method)"
        )
        assert refusal(lambda: tool(Upper)).startswith("Tool name 'Upper' is not valid")


class TestWrap:
    def test_it_makes_a_tool_of_a_function(self) -> None:
        """The function itself is left alone."""
        made = Tool.wrap(search)
        assert (made.name, made.description, made.params_type, made.result_type, made.handler) == (
            "search",
            "Search the index.",
            Query,
            Hits,
            search,
        )
        assert not isinstance(made, ToolFunction)

    def test_methods_of_an_object(self) -> None:
        """The object is bound; its method's parameters are the tool's."""

        @dataclass
        class Counter:
            step: int
            seen: list[int] = field(default_factory=list[int])

            def add(self, n: int) -> int:
                """Add a number."""
                self.seen.append(n * self.step)
                return sum(self.seen)

        made = Tool.wrap(Counter(2).add, examples=[])
        handler: Any = made.handler
        assert (made.name, handler(made.parse({"n": 3}), context=None)) == ("add", ToolResult.ok(6))

    def test_what_has_no_name_needs_one(self) -> None:
        """A partial is described by the caller."""
        half = functools.partial(pow, 2)
        assert refusal(lambda: Tool.wrap(half)) == "Give name=: partial objects have no name of their own"

    def test_only_functions_can_be_wrapped(self) -> None:
        """Anything else is named."""
        wrong: Any = 3
        assert refusal(lambda: Tool.wrap(wrong)) == "A tool is made of a function, got int"

    def test_a_function_that_hides_its_parameters_is_refused(self) -> None:
        """Some callables written in C do not tell what they take."""
        assert refusal(lambda: Tool.wrap(min, description="Least.")) == (
            "Tool 'min': the function does not tell its parameters; wrap it in one that does"
        )
