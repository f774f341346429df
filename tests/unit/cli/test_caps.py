"""What a run may use at most: what is typed, within what the settings say."""

from typing import Any

import pytest

from loopwarden.cli.caps import deployment_limits, find_overrides, first_line
from loopwarden.cli.request import Request, Target
from loopwarden.contract import PlainContract
from loopwarden.failures import InvalidRequest
from loopwarden.limits import Limits
from loopwarden.script import Script
from loopwarden.settings import Settings


def asking(**more: Any) -> Request:
    target = Target(name="own", script=Script(name="own", source="", contract=PlainContract()), file=None)
    return Request(target=target, args={}, workspace=None, **more)


def settings(**limits: Any) -> Settings:
    return Settings(limits=Limits(**limits), limits_given=frozenset(limits))


def in_force(request: Request, deployment: Settings) -> Limits:
    return deployment_limits(request, deployment).lowered(find_overrides(request, deployment))


@pytest.mark.parametrize(
    ("limits", "asked", "extra"),
    [
        ({}, None, None),  # resolved with or without a store, see `Limits.resolved`
        ({}, 5, 5),
        ({}, 0, 0),
        ({"max_extra_attempts": 7}, None, 7),
        ({"max_extra_attempts": 7}, 5, 5),
        ({"max_extra_attempts": 7}, 0, 0),
        ({"max_extra_attempts": 0}, None, 0),
    ],
)
def test_repeats_are_those_typed_within_those_of_the_file(
    limits: dict[str, int], asked: int | None, extra: int | None
) -> None:
    assert in_force(asking(max_extra_attempts=asked), settings(**limits)).max_extra_attempts == extra


@pytest.mark.parametrize(
    ("limits", "asked", "cost"),
    [({}, None, None), ({}, 5.0, 5.0), ({"max_cost_usd": 7.0}, None, 7.0), ({"max_cost_usd": 7.0}, 5.0, 5.0)],
)
def test_money_is_that_typed_within_that_of_the_file(
    limits: dict[str, float], asked: float | None, cost: float | None
) -> None:
    assert in_force(asking(max_cost_usd=asked), settings(**limits)).max_cost_usd == cost


@pytest.mark.parametrize(
    ("limits", "asked", "words"),
    [
        ({"max_extra_attempts": 7}, {"max_extra_attempts": 8}, "--max-extra-attempts is 8, above the ceiling of"),
        ({"max_extra_attempts": 0}, {"max_extra_attempts": 1}, "--max-extra-attempts is 1, above the ceiling of"),
        (
            {"max_cost_usd": 5.0},
            {"max_cost_usd": 5.5},
            "--max-cost is $5.50, above the ceiling of this deployment, $5.00; ask for at most that",
        ),
        ({"max_total_agents": 5}, {"max_total_agents": 6}, "--max-total-agents is 6, above the ceiling of"),
    ],
)
def test_more_than_the_file_allows_is_refused(limits: dict[str, Any], asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_overrides(asking(**asked), settings(**limits))
    assert caught.value.message.startswith(words)


def test_a_cap_that_nobody_typed_is_blamed_on_the_run_it_comes_from() -> None:
    request = asking(max_cost_usd=9.0, taken_over=frozenset({"max_cost_usd"}))
    with pytest.raises(InvalidRequest) as caught:
        find_overrides(request, settings(max_cost_usd=5.0))
    assert caught.value.message == (
        "the run that is continued had --max-cost $9.00, above the ceiling of this deployment, $5.00; "
        "give --max-cost with at most that"
    )


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ({}, "own: at most 10 agents, 24 h, no cost cap"),
        ({"max_cost_usd": 5.0}, "own: at most 10 agents, 24 h, at most $5.00"),
        (
            {"max_extra_attempts": 3, "max_cost_usd": 1234.5},
            "own: at most 10 agents (and 3 repeats), 24 h, at most $1,234.50",
        ),
        ({"max_cost_usd": 0.0123}, "own: at most 10 agents, 24 h, at most $0.0123"),
    ],
)
def test_the_first_line_says_every_cap(limits: dict[str, Any], line: str) -> None:
    assert first_line("own", 10, Limits(**limits)) == line
