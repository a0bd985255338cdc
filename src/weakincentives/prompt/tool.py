"""The contract of a tool: its name, types, handler, effects and limits, all checked when it is built.

Decides what a legal tool is, how arguments become params, and what a provider is told. Never runs a handler:
calling a tool hands over to the pipeline through the context.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, get_origin, overload

from .. import serde
from ..errors import PromptValidationError
from ..frozen import frozen
from ..serde.shape import shape_of
from .docstring import first_line, parameter_descriptions
from .json_schema import JsonSchema
from .result_type import (
    UnsupportedType,
    ValueCheck,
    dataclasses_in,
    fits,
    is_dataclass_type,
    strip,
    type_name,
    value_check,
)
from .signature import UNKNOWN, Place, Signature, calling_place, names_for, resolve_argument
from .tool_context import ToolContext
from .tool_result import ToolResult

__all__ = ["Compensation", "Effects", "Tool", "ToolContext", "ToolExample", "ToolFunction", "ToolHandler", "tool"]

ParamsT = TypeVar("ParamsT")
ResultT = TypeVar("ResultT")
ParamsT_contra = TypeVar("ParamsT_contra", contravariant=True)
ResultT_contra = TypeVar("ResultT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)
CallP = ParamSpec("CallP")
CallR = TypeVar("CallR")

Effects = Literal["none", "local", "external"]
"""none: reads only, may run beside others; local: writes what a rollback undoes; external: changes the outside world."""

_EFFECTS: tuple[str, ...] = get_args(Effects)
_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_TEXT_LIMIT = 200
_JSON_OBJECT: Any = dict[str, Any]
_NOTHING = frozenset(("", "{}", "null"))


class ToolHandler(Protocol[ParamsT_contra, ResultT_co]):
    """What does a tool's work, sync or async."""

    def __call__(
        self, params: ParamsT_contra, /, *, context: ToolContext
    ) -> ToolResult[ResultT_co] | Awaitable[ToolResult[ResultT_co]]: ...


class Compensation(Protocol[ParamsT_contra, ResultT_contra]):
    """Undoes an external effect after the transaction around it was rolled back."""

    def __call__(
        self, params: ParamsT_contra, result: ToolResult[ResultT_contra], /, *, context: ToolContext
    ) -> object: ...


@frozen
class ToolExample(Generic[ParamsT, ResultT]):
    """One representative call, shown to the model in the prompt and in the tool's schema."""

    description: str
    input: ParamsT
    output: ResultT


class _ToolAlias(types.GenericAlias):
    """`Tool[Params, Result]` at run time: calling it builds a tool that knows both types."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cast("type[Tool[Any, Any]]", self.__origin__))
        object.__setattr__(made, "_declared", self.__args__)
        made.__init__(*args, **kwargs)
        return made


class Tool(Generic[ParamsT, ResultT]):
    """A tool as the model sees it and as the pipeline runs it. Made once by its author, never changed."""

    __slots__ = (
        "__weakref__",
        "_declared",
        "_json_schema",
        "_param_descriptions",
        "_parser",
        "_value_check",
        "accepts_overrides",
        "compensate",
        "description",
        "effects",
        "examples",
        "handler",
        "is_async",
        "name",
        "output_limit",
        "params_type",
        "result_type",
        "timeout",
    )

    name: str
    description: str
    params_type: type[ParamsT] | None
    """The params' dataclass, None for a tool without parameters, `dict` for one with a JSON Schema of its own."""
    result_type: Any
    """What the value of a success is, as declared."""
    handler: ToolHandler[ParamsT, ResultT] | None
    """None: the tool is shown to the model, and calling it fails with a text that says so."""
    is_async: bool
    examples: tuple[ToolExample[ParamsT, ResultT], ...]
    accepts_overrides: bool
    """Whether an override store may change its description and those of its parameters."""
    effects: Effects
    timeout: float | None
    """Seconds after which the call is given up, fenced and rolled back."""
    compensate: Compensation[ParamsT, ResultT] | None
    output_limit: int | None
    """Characters of the rendered output the model gets at once; the rest goes to an artifact."""

    def __class_getitem__(cls, arguments: Any) -> Any:
        given = cast("tuple[Any, ...]", arguments if isinstance(arguments, tuple) else (arguments,))
        if "__slots__" in vars(cls) and len(given) != 2:  # subclasses that add type variables have their own count
            raise TypeError("A tool has two types: Tool[Params, Result]; write None for the one it does not have")
        return _ToolAlias(cls, given)

    def __init__(
        self,
        *,
        name: str,
        description: str,
        handler: ToolHandler[ParamsT, ResultT] | None = None,
        examples: Sequence[ToolExample[ParamsT, ResultT]] = (),
        accepts_overrides: bool = True,
        effects: Effects = "local",
        timeout: float | None = None,
        compensate: Compensation[ParamsT, ResultT] | None = None,
        output_limit: int | None = None,
    ) -> None:
        place = calling_place(__name__)
        _check_words(name, description, effects, timeout, output_limit)
        declared = cast("tuple[Any, Any]", getattr(self, "_declared", (UNKNOWN, UNKNOWN)))
        try:
            contract = _Contract(declared, handler, place)
            checked_examples = contract.check_examples(examples)
            if compensate is not None:
                _check_compensate(compensate, effects, place)
        except PromptValidationError as error:
            raise PromptValidationError(f"Tool '{name}': {error}") from error.__cause__
        for attribute, value in (
            ("name", name),
            ("description", description),
            ("params_type", contract.params_type),
            ("result_type", contract.result_type),
            ("handler", handler),
            ("is_async", contract.is_async),
            ("examples", checked_examples),
            ("accepts_overrides", accepts_overrides),
            ("effects", effects),
            ("timeout", timeout),
            ("compensate", compensate),
            ("output_limit", output_limit),
            ("_declared", declared),
            ("_json_schema", contract.json_schema),
            ("_param_descriptions", dict[str, str]()),
            ("_parser", None),
            ("_value_check", contract.value_check),
        ):
            object.__setattr__(self, attribute, value)

    @staticmethod
    def wrap(
        function: Callable[..., object],
        *,
        name: str | None = None,
        description: str | None = None,
        examples: Sequence[ToolExample[Any, Any]] = (),
        accepts_overrides: bool = True,
        effects: Effects = "local",
        timeout: float | None = None,
        compensate: Compensation[Any, Any] | None = None,
        output_limit: int | None = None,
    ) -> Tool[Any, Any]:
        """A tool that runs a function; what is not given comes from its name, docstring and annotations.

        Two styles: `(params: Dataclass, *, context) -> ToolResult[R]`, and a plain function, whose parameters become
        the tool's parameters and whose return value becomes the result's value; its examples may give their input
        as a mapping.
        """
        derived = _Derived(function, name, description, calling_place(__name__))
        return cast(
            "Tool[Any, Any]",
            _ToolAlias(Tool, derived.types)(
                name=derived.name,
                description=derived.description,
                handler=derived.handler,
                examples=derived.examples(examples),
                accepts_overrides=accepts_overrides,
                effects=effects,
                timeout=timeout,
                compensate=compensate,
                output_limit=output_limit,
            ),
        )

    @staticmethod
    def from_json_schema(
        *,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        handler: ToolHandler[dict[str, Any], Any] | None = None,
        result_type: Any = Any,
        examples: Sequence[ToolExample[Any, Any]] = (),
        accepts_overrides: bool = True,
        effects: Effects = "local",
        timeout: float | None = None,
        compensate: Compensation[dict[str, Any], Any] | None = None,
        output_limit: int | None = None,
    ) -> Tool[dict[str, Any], Any]:
        """A tool whose parameters are a JSON object described by a schema; the handler gets the object as a dict.

        The schema judges the arguments. A keyword that cannot be judged is refused here, never skipped.
        """
        try:
            judge = JsonSchema(schema)
        except PromptValidationError as error:
            raise PromptValidationError(f"Tool '{name}': cannot use its schema: {error}") from error.__cause__
        return cast(
            "Tool[dict[str, Any], Any]",
            _ToolAlias(Tool, (judge, result_type))(
                name=name,
                description=description,
                handler=handler,
                examples=examples,
                accepts_overrides=accepts_overrides,
                effects=effects,
                timeout=timeout,
                compensate=compensate,
                output_limit=output_limit,
            ),
        )

    def __call__(self, params: ParamsT, *, context: ToolContext) -> ToolResult[ResultT]:
        """Run the whole pipeline on the context's session and resources."""
        return self.run(params, context=context)

    def run(self, params: ParamsT, *, context: ToolContext) -> ToolResult[ResultT]:
        """Run the whole pipeline, also for a decorated function, whose own call stays a plain call."""
        return cast("ToolResult[ResultT]", context.run(self, params))

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(f"A Tool does not change: cannot set {attribute!r} of {self.name!r}")

    def __delattr__(self, attribute: str) -> None:
        raise AttributeError(f"A Tool does not change: cannot delete {attribute!r} of {self.name!r}")

    def __repr__(self) -> str:
        return f"<Tool {self.name}: {type_name(self.params_type)} -> {type_name(self.result_type)}>"

    # A tool never changes, so a copy is the tool itself; sessions and prompts can be copied without copying handlers.
    def __copy__(self) -> Tool[ParamsT, ResultT]:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Tool[ParamsT, ResultT]:
        return self

    @property
    def parser(self) -> serde.Parser[Any] | None:
        """Makes params of JSON; built at first use, None for a tool without parameters."""
        if self._parser is None and self.params_type is not None:
            target = _JSON_OBJECT if self._json_schema is not None else self.params_type
            object.__setattr__(self, "_parser", serde.parser(target))
        return cast("serde.Parser[Any] | None", self._parser)

    def parse(self, arguments: Mapping[str, Any] | str | bytes | None) -> ParamsT:
        """The params of a call, from a mapping or JSON text; raises ParseError with every problem."""
        parser: Any = self._parser or self.parser
        if parser is None:
            return cast("ParamsT", _parse_nothing(arguments))
        if type(arguments) is str or isinstance(arguments, str | bytes):
            params = parser.parse_json(arguments)
        else:
            params = parser.parse({} if arguments is None else arguments)
        if self._json_schema is not None:
            _judge(self._json_schema, params)
        return params

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters; a new one each time, free to change."""
        if self._json_schema is not None:
            schema = cast("JsonSchema", self._json_schema).document()
        elif self.params_type is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        else:
            schema = serde.schema(self.params_type)
        for name, text in cast("dict[str, str]", self._param_descriptions).items():
            schema["properties"][name]["description"] = text
        return schema

    def spec(self) -> dict[str, Any]:
        """What a provider is told: name, description, parameters and, if there are any, examples."""
        spec: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.schema()}
        if self.examples:
            spec["examples"] = [
                {
                    "description": example.description,
                    "input": {} if example.input is None else serde.dump(example.input, redact=True),
                    "output": serde.dump(example.output, redact=True),
                }
                for example in self.examples
            ]
        return spec

    def result_check(self, value: object) -> str | None:
        """None when a success may carry this value, else what is wrong. No value at all is always fine."""
        if value is None or self._value_check(value):
            return None
        return (
            f"tool '{self.name}' must return a value of type {type_name(self.result_type)}, got {type(value).__name__}"
        )

    def with_description(
        self, description: str | None = None, *, param_descriptions: Mapping[str, str] | None = None
    ) -> Tool[ParamsT, ResultT]:
        """A copy that tells the model something else about itself or its parameters."""
        if description is not None:
            _check_description(self.name, description)
        known = cast("dict[str, Any]", self.schema().get("properties", {}))
        for name in param_descriptions or {}:
            if not isinstance(known.get(name), dict):
                raise PromptValidationError(
                    f"Tool '{self.name}': no parameter '{name}' to describe; it has: {', '.join(known) or 'none'}"
                )
        changed = cast("Tool[ParamsT, ResultT]", object.__new__(type(self)))
        for attribute in Tool.__slots__:
            if attribute != "__weakref__":
                object.__setattr__(changed, attribute, getattr(self, attribute))
        getattr(changed, "__dict__", {}).update(getattr(self, "__dict__", {}))
        if description is not None:
            object.__setattr__(changed, "description", description)
        texts = {**cast("dict[str, str]", self._param_descriptions), **(param_descriptions or {})}
        object.__setattr__(changed, "_param_descriptions", texts)
        return changed


class ToolFunction(Tool[Any, Any], Generic[CallP, CallR]):
    """A function decorated with `@tool`: a Tool that is still called like the function it was made of."""

    @property
    def Params(self) -> type[Any] | None:
        """The params' dataclass, made of the function's signature if it was a plain one."""
        return self.params_type

    def __call__(self, *args: CallP.args, **kwargs: CallP.kwargs) -> CallR:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call the function itself; `run` goes through the pipeline."""
        return cast("CallR", cast("Any", self).__wrapped__(*args, **kwargs))


@overload
def tool(function: Callable[CallP, CallR], /) -> ToolFunction[CallP, CallR]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[ToolExample[Any, Any]] = (),
    accepts_overrides: bool = True,
    effects: Effects = "local",
    timeout: float | None = None,
    compensate: Compensation[Any, Any] | None = None,
    output_limit: int | None = None,
) -> Callable[[Callable[CallP, CallR]], ToolFunction[CallP, CallR]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[ToolExample[Any, Any]] = (),
    accepts_overrides: bool = True,
    effects: Effects = "local",
    timeout: float | None = None,
    compensate: Compensation[Any, Any] | None = None,
    output_limit: int | None = None,
) -> Any:
    """Make a function a tool, as `Tool.wrap` does; it stays callable as before."""

    def decorate(function: Callable[..., Any]) -> Any:
        derived = _Derived(function, name, description, calling_place(__name__))
        made = _ToolAlias(ToolFunction, derived.types)(
            name=derived.name,
            description=derived.description,
            handler=derived.handler,
            examples=derived.examples(examples),
            accepts_overrides=accepts_overrides,
            effects=effects,
            timeout=timeout,
            compensate=compensate,
            output_limit=output_limit,
        )
        about = ("__name__", "__qualname__", "__module__", "__doc__")
        made.__dict__.update({key: getattr(function, key) for key in about if hasattr(function, key)})
        made.__dict__["__wrapped__"] = function
        return made

    return decorate if function is None else decorate(function)


# --- what is checked when a tool is built ----------------------------------------------------------------------------


def _check_words(name: object, description: object, effects: object, timeout: object, output_limit: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PromptValidationError(f"Tool name {name!r} is not valid: use 1 to 64 characters of a-z, 0-9, _ and -")
    _check_description(name, description)
    if effects not in _EFFECTS:
        raise PromptValidationError(f"Tool '{name}': effects must be one of {', '.join(_EFFECTS)}, got {effects!r}")
    if timeout is not None and not (_is_number(timeout) and 0 < cast("float", timeout) < math.inf):
        raise PromptValidationError(f"Tool '{name}': timeout must be a number of seconds above 0, got {timeout!r}")
    if output_limit is not None and not (
        _is_number(output_limit) and isinstance(output_limit, int) and output_limit > 0
    ):
        raise PromptValidationError(
            f"Tool '{name}': output_limit must be a whole number of characters above 0, got {output_limit!r}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_description(name: str, description: object) -> None:
    problem = _text_problem(description)
    if problem:
        raise PromptValidationError(f"Tool '{name}': description {problem}")


def _text_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be text, got {type(text).__name__}"
    if not text.strip():
        return f"must have 1 to {_TEXT_LIMIT} characters, it is empty"
    if len(text) > _TEXT_LIMIT:
        return f"must have 1 to {_TEXT_LIMIT} characters, it has {len(text)}"
    return None


def _check_compensate(compensate: object, effects: object, place: Place) -> None:
    if effects != "external":
        raise PromptValidationError(
            f'compensate is for tools with effects="external"; what a tool with effects="{effects}" does is rolled back'
        )
    if not callable(compensate):
        raise PromptValidationError(f"compensate must be callable, got {type(compensate).__name__}")
    Signature(compensate, place).check_call("compensate", "params", "result")


class _Contract:
    """The types of one tool, found out and checked against its handler. Lives while the tool is built."""

    def __init__(self, declared: tuple[Any, Any], handler: object, place: Place) -> None:
        self.json_schema = declared[0] if isinstance(declared[0], JsonSchema) else None
        params = _JSON_OBJECT if self.json_schema is not None else strip(resolve_argument(declared[0], place))
        result = resolve_argument(declared[1], place)
        # A type variable says nothing; what it stands for may be in the handler's annotations.
        params = UNKNOWN if isinstance(params, TypeVar) else params
        result = UNKNOWN if isinstance(result, TypeVar) else result
        self.is_async = False
        if handler is not None:
            params, result = self._agree(handler, params, result, place)
        if params is UNKNOWN or result is UNKNOWN:
            what = "params" if params is UNKNOWN else "result"
            raise PromptValidationError(
                f"cannot tell its {what} type: write Tool[Params, Result](…) or annotate the handler"
            )
        self.params_type: Any = dict if self.json_schema is not None else _checked_params(params, place)
        self.result_type: Any = strip(result)
        self.value_check: ValueCheck = _checked_result(self.result_type, place)

    def _agree(self, handler: object, params: Any, result: Any, place: Place) -> tuple[Any, Any]:
        if not callable(handler):
            raise PromptValidationError(f"handler must be callable, got {type(handler).__name__}")
        names = {type_name(tp): tp for tp in (params, result, *get_args(result)) if isinstance(tp, type)}
        signature = Signature(handler, place, names)
        signature.check_call("handler", "params")
        self.is_async = signature.is_async
        takes, gives = signature.first, signature.result_type("handler")
        if UNKNOWN not in (params, takes) and not fits(params, takes):
            raise PromptValidationError(
                f"handler takes params of type {type_name(takes)}, but the tool has {type_name(params)}"
            )
        if UNKNOWN not in (result, gives) and not fits(gives, result):
            raise PromptValidationError(
                f"handler returns ToolResult[{type_name(gives)}], but the tool has {type_name(result)}"
            )
        return (strip(takes) if params is UNKNOWN else params), (gives if result is UNKNOWN else result)

    def check_examples(self, examples: object) -> tuple[Any, ...]:
        if not isinstance(examples, Sequence) or isinstance(examples, str):
            raise PromptValidationError(f"examples must be a sequence of ToolExample, got {type(examples).__name__}")
        given = tuple(cast("Sequence[object]", examples))
        for at, example in enumerate(given):
            problem = self._example_problem(example)
            if problem:
                raise PromptValidationError(f"examples[{at}]{problem}")
        return given

    def _example_problem(self, example: object) -> str | None:
        if not isinstance(example, ToolExample):
            return f" must be a ToolExample, got {type(example).__name__}"
        shown = cast("ToolExample[object, object]", example)
        problem = _text_problem(shown.description)
        if problem:
            return f".description {problem}"
        if self.json_schema is not None:
            try:
                _judge(self.json_schema, shown.input)
            except serde.ParseError as error:
                return f".input does not fit the schema: {error}"
        elif not value_check(self.params_type)(shown.input):
            return f".input must be of type {type_name(self.params_type)}, got {type_name(type(shown.input))}"
        if not self.value_check(shown.output):
            return f".output must be of type {type_name(self.result_type)}, got {type_name(type(shown.output))}"
        return None


def _checked_params(params: Any, place: Place) -> Any:
    if params is None:
        return None
    if not is_dataclass_type(params):
        raise PromptValidationError(f"params must be a dataclass or None, got {type_name(params)}")
    names_for(cast("type", get_origin(params) or params), place, lambda names: shape_of(params, names))
    return params


def _checked_result(result: Any, place: Place) -> ValueCheck:
    try:
        check = value_check(result)
    except UnsupportedType as error:
        raise PromptValidationError(
            "result must be a dataclass, text, a number, a mapping, a list or tuple of these, or None, "
            f"got {type_name(error.args[0])}"
        ) from None
    for cls in dataclasses_in(result):
        names_for(cls, place, functools.partial(serde.resolve_types, cls))
    return check


def _judge(schema: JsonSchema, params: object) -> None:
    try:
        details = schema.check(params)
    except RecursionError:
        details = {"$": "Nested too deeply; send a flatter value"}
    if details:
        raise serde.ParseError(details)


def _parse_nothing(arguments: object) -> None:
    if isinstance(arguments, bytes):
        arguments = arguments.decode("utf-8", "replace")
    if isinstance(arguments, str):
        # Other ways to write an empty object: {  }
        empty = "".join(arguments.split()) in _NOTHING
    else:
        empty = arguments is None or arguments == {}
    if not empty:
        raise serde.ParseError({"$": "This tool takes no parameters; retry with {}"})


# --- a tool made of a function ---------------------------------------------------------------------------------------


class _Derived:
    """What a function says about the tool it becomes. Lives while the tool is built."""

    def __init__(self, function: object, name: str | None, description: str | None, place: Place) -> None:
        if not callable(function):
            raise PromptValidationError(f"A tool is made of a function, got {type(function).__name__}")
        self._function: Callable[..., Any] = function
        own_name = cast("str | None", getattr(function, "__name__", None))
        if name is None and own_name is None:
            raise PromptValidationError(f"Give name=: {type(function).__name__} objects have no name of their own")
        self.name: str = cast("str", name if name is not None else own_name)
        self.description = description if description is not None else first_line(function)
        if not self.description:
            raise PromptValidationError(f"Tool '{self.name}': give the function a docstring, or description=")
        try:
            self._read(Signature(function, place))
        except PromptValidationError as error:
            raise PromptValidationError(f"Tool '{self.name}': {error}") from error.__cause__

    def _read(self, signature: Signature) -> None:
        if signature.parameters is None:
            raise PromptValidationError("the function does not tell its parameters; wrap it in one that does")
        parameters = [each for each in signature.parameters.values() if each.name != "context"]
        gives = signature.result_hint()
        if gives is None:
            result = signature.returns
        elif gives[0] is UNKNOWN and signature.returns is UNKNOWN:
            raise PromptValidationError("annotate what the function returns")
        else:
            result = Any if gives[0] is UNKNOWN else gives[0]
        takes_context = "context" in signature.parameters
        if takes_context and signature.parameters["context"].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise PromptValidationError("context must be passable by keyword")
        if _takes_params(parameters, signature, returns_result=gives is not None):
            params = signature.hint(parameters[0])
            self._made = None
            plan = _Plan((), (), whole=True, context=takes_context)
        else:
            params = self._made = self._params_class(parameters, signature)
            by_place = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_ONLY)
            by_name = tuple(each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY)
            plan = _Plan(by_place, by_name, whole=False, context=takes_context)
        self.types: tuple[Any, Any] = (params, result)
        direct = plan.whole and plan.context and gives is not None
        self.handler: Any = self._function if direct else plan.handler(self._function, signature.is_async)

    def examples(self, given: Sequence[ToolExample[Any, Any]]) -> Sequence[ToolExample[Any, Any]]:
        """The examples, with inputs of the class we made where mappings stood: their author cannot name it yet."""
        if self._made is None or not isinstance(given, list | tuple):
            return given
        return [self._example(at, example) for at, example in enumerate(given)]

    def _example(self, at: int, example: Any) -> Any:
        if not isinstance(example, ToolExample):
            return example
        shown = cast("ToolExample[Any, Any]", example)
        if not isinstance(shown.input, Mapping):
            return shown
        values = cast("Mapping[str, Any]", shown.input)
        problems = JsonSchema(serde.schema(self._made)).check(serde.dump(dict(values)))
        if problems:
            raise PromptValidationError(
                f"Tool '{self.name}': examples[{at}].input does not fit the parameters: {serde.ParseError(problems)}"
            )
        return replace(shown, input=cast("Any", self._made)(**values))

    def _params_class(self, parameters: list[inspect.Parameter], signature: Signature) -> Any:
        """A dataclass with one field per parameter; None when there are none."""
        if parameters and parameters[0].name in ("self", "cls") and parameters[0].annotation is inspect.Parameter.empty:
            raise PromptValidationError("a method becomes a tool through its object: Tool.wrap(instance.method)")
        told = parameter_descriptions(self._function)
        fields: list[tuple[str, Any, Any]] = []
        for each in parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                raise PromptValidationError(f"a tool cannot take '{each}': name each parameter")
            hint = signature.hint(each)
            if hint is UNKNOWN:
                why = (
                    "has no annotation"
                    if each.annotation is each.empty
                    else f"is annotated {each.annotation!r}, which cannot be found"
                )
                raise PromptValidationError(f"parameter '{each.name}' {why}")
            metadata = {"description": told[each.name]} if each.name in told else {}
            if each.default is each.empty:
                fields.append((each.name, hint, field(metadata=metadata)))
            elif each.default.__class__.__hash__ is None:
                fields.append((each.name, hint, field(default_factory=_copier(each.default), metadata=metadata)))
            else:
                fields.append((each.name, hint, field(default=each.default, metadata=metadata)))
        if not fields:
            return None
        title = "".join(part.capitalize() for part in re.split(r"[_-]", self.name)) + "Params"
        made = make_dataclass(title, fields, frozen=True, slots=True, kw_only=True)
        # Where a decorated function's params are found again by whoever stored them: module:function.Params
        made.__module__ = getattr(self._function, "__module__", None) or __name__
        made.__qualname__ = f"{getattr(self._function, '__qualname__', title)}.Params"
        return made


def _takes_params(parameters: list[inspect.Parameter], signature: Signature, *, returns_result: bool) -> bool:
    """Whether the function takes its params as one object: the only parameter, a dataclass or None."""
    if len(parameters) != 1:
        return False
    only = parameters[0]
    if only.kind not in (only.POSITIONAL_ONLY, only.POSITIONAL_OR_KEYWORD) or only.default is not only.empty:
        return False
    hint = strip(signature.hint(only))
    return (hint is None or is_dataclass_type(hint)) and (returns_result or only.name.lstrip("_") == "params")


def _copier(default: object) -> Callable[[], object]:
    return lambda: copy.deepcopy(default)


class _Plan:
    """How params become the arguments of a function."""

    def __init__(self, by_place: tuple[str, ...], by_name: tuple[str, ...], *, whole: bool, context: bool) -> None:
        self.by_place = by_place
        self.by_name = by_name
        self.whole = whole
        self.context = context

    def call(self, function: Callable[..., Any], params: object, context: object) -> Any:
        if self.whole:
            return function(params, context=context) if self.context else function(params)
        given = {name: getattr(params, name) for name in self.by_name}
        if self.context:
            given["context"] = context
        return function(*[getattr(params, name) for name in self.by_place], **given)

    def handler(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        async def handle_async(params: object, *, context: object) -> ToolResult[Any]:
            return _as_result(await self.call(function, params, context))

        def handle(params: object, *, context: object) -> ToolResult[Any]:
            return _as_result(self.call(function, params, context))

        return handle_async if is_async else handle


def _as_result(value: Any) -> ToolResult[Any]:
    return cast("ToolResult[Any]", value) if isinstance(value, ToolResult) else ToolResult.ok(value)
