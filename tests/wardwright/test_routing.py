"""Routing: the ruling's route first, then what fits, in the order of the file; whatever is left out is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import Price, Target, compile_plan
from wardwright.policy.rules import Route
from wardwright.routing import choose, estimate

A = Target("a", "p", 100_000, True)
B = Target("b", "p", 1_000, True)
C = Target("c", "q", None, False)
ALL = (A, B, C)


def never(_target: Target) -> bool:
    return False


def test_the_order_of_the_file_is_the_order_of_fallback() -> None:
    """Without any constraint the first target is asked first, and the others if it fails."""
    selection = choose(ALL, Route(), needs_tools=False, tokens=10, open=never)
    assert (selection.order, selection.skipped) == (ALL, ())


def test_a_hard_model_leaves_no_other() -> None:
    """A fallback never leaves what the ruling allows."""
    selection = choose(ALL, Route(model="b"), needs_tools=False, tokens=10, open=never)
    assert selection.order == (B,)
    assert selection.skipped == ({"model": "a", "reason": "route"}, {"model": "c", "reason": "route"})


def test_an_allow_list_keeps_the_order_of_the_file() -> None:
    """A restriction takes targets away and changes nothing else."""
    selection = choose(ALL, Route(allowed=("c", "a")), needs_tools=False, tokens=10, open=never)
    assert selection.order == (A, C)
    assert selection.skipped == ({"model": "b", "reason": "route"},)


def test_preferred_models_come_first() -> None:
    """A preference orders; the others stay behind it as fallback."""
    selection = choose(ALL, Route(prefer=("c", "b")), needs_tools=False, tokens=10, open=never)
    assert selection.order == (C, B, A)


def test_a_preference_does_not_widen_what_is_allowed() -> None:
    """What is preferred but not allowed is left out."""
    selection = choose(ALL, Route(allowed=("a",), prefer=("c",)), needs_tools=False, tokens=10, open=never)
    assert selection.order == (A,)


def test_targets_that_do_not_fit_are_left_out_with_their_reason() -> None:
    """G42: tools are never dropped and text never cut to make a request fit."""
    selection = choose(ALL, Route(), needs_tools=True, tokens=5_000, open=never)
    assert selection.order == (A,)
    assert selection.skipped == (
        {"model": "b", "reason": "context_window"},
        {"model": "c", "reason": "tools"},
    )
    assert not choose((B, C), Route(), needs_tools=True, tokens=5_000, open=never).resting


def test_targets_whose_breaker_is_open_are_left_out() -> None:
    """G42: all open is an outage that ends by itself."""
    selection = choose(ALL, Route(), needs_tools=True, tokens=5_000, open=lambda target: target.model == "a")
    assert selection.order == ()
    assert {"model": "a", "reason": "breaker_open"} in selection.skipped
    assert selection.resting
    assert not choose(ALL, Route(), needs_tools=False, tokens=1, open=lambda target: target is A).resting


MODELS = st.sampled_from(["a", "b", "c", "x"])


@given(
    st.none() | st.lists(MODELS, unique=True).map(tuple),
    st.just("") | MODELS,
    st.lists(MODELS, unique=True).map(tuple),
    st.booleans(),
    st.integers(0, 200_000),
    st.sets(MODELS),
)
def test_every_target_is_asked_or_named(
    allowed: tuple[str, ...] | None,
    hard: str,
    prefer: tuple[str, ...],
    needs_tools: bool,
    tokens: int,
    opened: set[str],
) -> None:
    """Whatever the route, nothing is asked that it does not allow, and each target is in the order or among the skipped, once."""
    selection = choose(
        ALL, Route(allowed, hard, prefer), needs_tools=needs_tools, tokens=tokens, open=lambda one: one.model in opened
    )
    asked = [target.model for target in selection.order]
    assert sorted([*asked, *(one["model"] for one in selection.skipped)]) == ["a", "b", "c"]
    for target in selection.order:
        assert not hard or target.model == hard
        assert allowed is None or target.model in allowed
        assert target.tools or not needs_tools
        assert target.model not in opened
        assert target.context_window is None or tokens <= target.context_window


def test_tokens_are_estimated_from_bytes() -> None:
    """Four bytes are about a token."""
    assert [estimate(0), estimate(4_000), estimate(4_003)] == [0, 1_000, 1_000]


def test_a_target_says_what_it_costs_and_how_its_provider_calls_it() -> None:
    """`price` is per million tokens; without `upstream_model` the name is sent as it is."""
    plan = compile_plan(
        parse_config(
            "targets:\n"
            "  - {model: fast, upstream_model: gpt-x-mini, price: {input: 0.5, output: 2}}\n"
            "  - {model: local/private}\n"
        )
    )
    model = plan.model("default")
    assert model is not None
    first, second = model.targets
    assert (first.upstream_model, first.price) == ("gpt-x-mini", Price(0.5, 2.0))
    assert Price(0.5, 2.0).of(1_000_000, 500_000) == 1.5
    assert (second.upstream_model, second.price) == ("local/private", None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("price: {input: 1}", "missing key 'output'"),
        ("price: {input: 1, output: -2}", "must be at least 0, got -2"),
        ("price: {input: 1, output: 2, outptu: 3}", "unknown key 'outptu' (did you mean 'output'?)"),
        ("price: 3", "expected a mapping, got number 3"),
        ("upstream_model: ' x'", "' x' cannot be a name: it has spaces around it, or what cannot be printed"),
        ("upstream: x", "unknown key 'upstream' (did you mean 'upstream_model'?)"),
    ],
)
def test_a_mistake_in_a_target_is_told(more: str, message: str) -> None:
    """A price that cannot be reckoned with, or a name that cannot be sent, is refused."""
    with pytest.raises(ConfigError) as failed:
        compile_plan(parse_config(f"targets:\n  - {{model: a, {more}}}\n"))
    assert message in [problem.message for problem in failed.value.problems]
