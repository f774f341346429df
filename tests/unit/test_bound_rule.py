"""What `require_bound` refuses, and in which words."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from loopwarden import Host, InvalidRequest, Script, ScriptRejected
from loopwarden.agent_bound import BoundReason, unknown_bound
from loopwarden.bound_rule import refuse_unbounded, shown_most
from loopwarden.plan import Plan, make_plan


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound that comes to a number, or to none."""

    most: int | None
    text: str = "agents <= args.n"
    is_known: bool = True

    def evaluate(self, args: object) -> int | None:
        return self.most

    def to_json(self) -> dict[str, str]:
        return {"text": self.text}


async def never(request: object) -> str:
    raise AssertionError("nobody is asked")


def plan(cap: int) -> Plan[Any, Any]:
    script = Script.from_text("def main(args):\n    return 1\n", name="it")
    host = Host(providers={"default": never})
    made = make_plan(
        host._deployment, script, {}, workspace=None, share_workspace=False, isolation=None, provider=None, checks=(),
        continues=None, overrides={"max_total_agents": cap},
    )  # fmt: skip
    return replace(made, script_args={"n": 3})


def refusal(bound: Any, cap: int = 5) -> str:
    with pytest.raises((ScriptRejected, InvalidRequest)) as caught:
        refuse_unbounded(plan(cap), bound)
    assert caught.value.details["bound"] == bound.to_json()
    return f"{caught.value.code}: {caught.value.message}"


@pytest.mark.parametrize("most", [0, 4, 5])
def test_up_to_the_cap_all_is_well(most: int) -> None:
    refuse_unbounded(plan(5), Bound(most))  # type: ignore[arg-type]


def test_one_above_the_cap_names_both_numbers() -> None:
    assert refusal(Bound(6)) == (
        "INVALID_REQUEST: with these arguments the script 'it' could start 6 agents (agents <= args.n), above the 5 "
        "that this run may (maxTotalAgents); ask for less work, or raise max_total_agents"
    )


def test_arguments_with_which_the_bound_is_no_number_are_refused() -> None:
    assert refusal(Bound(None)).startswith(
        "INVALID_REQUEST: the script 'it' is bounded by agents <= args.n, and with these arguments that is no number"
    )


def test_an_unknown_bound_names_its_first_line_and_how_many_there_are() -> None:
    reasons = [BoundReason(line=7, message="this while loop"), BoundReason(line=9, message="it calls itself")]
    assert refusal(unknown_bound(reasons)).endswith(
        "vetting finds no bound for the script 'it': line 7: this while loop (and 1 more line)"
    )
    assert refusal(unknown_bound(reasons[:1])).endswith("line 7: this while loop")


def test_a_number_of_any_size_is_shown_in_a_few_words() -> None:
    assert shown_most(1) == "1 agent"
    assert shown_most(10**5000) == "more than 9,007,199,254,740,991 agents"
    assert len(refusal(Bound(10**5000))) < 400
