"""What loop.py does, executed under the language policy with agents of the test."""

import json
from typing import Any

import pytest

from loopwarden.contract import AgentOutcome, CallFacts, Delivery, Facts, Opening
from loopwarden_engine.language import compile_script, script_namespace
from loopwarden_engine.plain import JsonObject
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.contract import MAX_FAILED_CHECKS_CHARS, RalphContract
from loopwarden_scripts.ralph.report import REPORT_SCHEMA

CONTRACT = RalphContract(ralph.RalphSettings(max_handoff_chars=2_000))
COMPILED = compile_script(ralph.script.source)
OBJECTIVE = 'Make "it" work.\n\tThen {stop} — 終'


def report(status: str, summary: str = "did a thing") -> JsonObject:
    return {
        "status": status,
        "summary": summary,
        "evidence": ["ran tests"],
        "nextSteps": ["write docs"] if status == "continue" else [],
        "blocker": "need a key" if status == "blocked" else "",
    }


class Run:
    """One execution of loop.py: what it called, what it said, what it returned."""

    def __init__(
        self, replies: list[JsonObject | None], *, max_rounds: int = 5, opening: Opening | None = None
    ) -> None:
        self.replies = replies
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.phases: list[str] = []
        self.args = CONTRACT.decode_args({"objective": OBJECTIVE, "maxRounds": max_rounds})
        hooks = dict.fromkeys(("log", "parallel", "pipeline"), self._unexpected)
        namespace: dict[str, Any] = script_namespace({**hooks, "agent": self._agent, "phase": self.phases.append})
        exec(COMPILED.code, namespace)
        self.main = namespace["main"]
        self.script_args = CONTRACT.script_args(self.args, opening)

    def _agent(self, prompt: str, **options: Any) -> JsonObject | None:
        self.calls.append((prompt, options))
        return self.replies[len(self.calls) - 1]

    def _unexpected(self, *args: object, **options: object) -> None:
        raise AssertionError("ralph calls agent and phase only")

    def value(self) -> Any:
        return self.main(self.script_args)


def test_a_complete_report_ends_the_loop_at_once() -> None:
    run = Run([report("continue"), report("complete"), report("continue")])
    assert run.value() == {"status": "complete", "roundsStarted": 2, "report": report("complete")}
    assert len(run.calls) == 2


def test_a_blocked_report_ends_the_loop_at_once() -> None:
    run = Run([report("blocked"), report("continue")])
    assert run.value() == {"status": "blocked", "roundsStarted": 1, "report": report("blocked")}


def test_the_last_continue_report_is_the_result_when_the_rounds_are_used_up() -> None:
    run = Run([report("continue", "one"), report("continue", "two")], max_rounds=2)
    assert run.value() == {"status": "budget-limited", "roundsStarted": 2, "report": report("continue", "two")}


def test_a_failed_first_round_leaves_no_last_report() -> None:
    run = Run([None])
    assert run.value() == {"status": "round-failed", "roundsStarted": 1, "lastReport": None}


def test_a_failed_later_round_leaves_the_report_before_it() -> None:
    run = Run([report("continue", "one"), report("continue", "two"), None, report("complete")])
    assert run.value() == {"status": "round-failed", "roundsStarted": 3, "lastReport": report("continue", "two")}


def test_a_failed_first_round_of_a_continued_run_leaves_no_last_report() -> None:
    run = Run([None], opening=Opening(run_id="r1", handoff=report("continue"), failed_checks=None))
    assert run.value() == {"status": "round-failed", "roundsStarted": 1, "lastReport": None}


def test_a_report_that_breaks_a_rule_ends_the_loop_as_an_error_without_a_retry() -> None:
    run = Run([report("continue"), {**report("continue"), "nextSteps": []}, report("complete")])
    with pytest.raises(ValueError, match="the report of round 2 says continue and must name at least one next step"):
        run.value()
    assert len(run.calls) == 2


def test_an_oversized_report_is_an_error_that_names_both_numbers() -> None:
    long = report("continue", "x" * 1_990)
    length = len(json.dumps(long, separators=(",", ":")))
    with pytest.raises(ValueError, match=f"has {length} characters as compact JSON; the limit is 2000"):
        Run([long]).value()


def test_all_rounds_stand_under_one_phase_with_one_label_each() -> None:
    run = Run([report("continue")] * 3, max_rounds=3)
    run.value()
    assert run.phases == ["Fresh-agent rounds"]
    assert [options.pop("label") for _, options in run.calls] == ["Ralph round 1", "Ralph round 2", "Ralph round 3"]
    assert all(options == {"schema": REPORT_SCHEMA} for _, options in run.calls)


def test_every_prompt_holds_the_objective_the_number_of_the_round_and_not_the_total() -> None:
    run = Run([report("continue")] * 43, max_rounds=43)
    run.value()
    for number, (prompt, _) in enumerate(run.calls, 1):
        assert OBJECTIVE in prompt
        assert f"# Round {number}\n" in prompt
        assert "43" not in prompt or number == 43


def test_every_prompt_tells_a_fresh_worker_how_to_work_and_how_to_report() -> None:
    run = Run([report("complete")])
    run.value()
    prompt = run.calls[0][0]
    assert "no memory of other rounds" in prompt
    assert "Do not start a loop" in prompt.replace("\n", " ")
    assert "what lies there is the truth" in prompt
    assert "at most 2000 characters" in prompt
    for word in ("status", "summary", "evidence", "nextSteps", "blocker", "continue", "complete", "blocked"):
        assert f'"{word}"' in prompt


def test_a_prompt_holds_the_report_of_the_round_before_and_no_older_one() -> None:
    run = Run([report("continue", "unus é\n\u2028x"), report("continue", "second"), report("complete")])
    run.value()
    prompts = [prompt for prompt, _ in run.calls]
    assert "There is no handoff" in prompts[0]
    assert json.dumps(run.replies[0], ensure_ascii=False, separators=(",", ":")) in prompts[1]
    assert "There is no handoff" not in prompts[1]
    assert "unus" not in prompts[2]
    assert "second" in prompts[2]


def test_the_handoff_stands_in_the_prompt_in_one_order_of_keys() -> None:
    run = Run([dict(reversed(report("continue").items())), report("complete")])
    run.value()
    assert json.dumps(report("continue"), separators=(",", ":")) in run.calls[1][0]


def test_a_continued_run_begins_with_the_handoff_and_the_failed_checks() -> None:
    opening = Opening(run_id="r1", handoff=report("complete", "from r1"), failed_checks="FAILED test_x\n  {boom}")
    run = Run([report("continue"), report("complete")], opening=opening)
    run.value()
    first, second = (prompt for prompt, _ in run.calls)
    assert json.dumps(report("complete", "from r1"), separators=(",", ":")) in first
    assert "FAILED test_x\n  {boom}" in first
    assert "from r1" not in second
    assert "FAILED" not in second


def test_of_long_output_of_failed_checks_the_end_is_kept_and_the_cut_is_marked() -> None:
    opening = Opening(run_id="r1", handoff=None, failed_checks="a" * 20_000 + "the error")
    kept = CONTRACT.script_args(ralph.Args(objective="x"), opening)["failedChecks"]
    assert isinstance(kept, str)
    assert len(kept) == MAX_FAILED_CHECKS_CHARS
    assert kept.startswith("[earlier output cut]\naaa")
    assert kept.endswith("the error")


@pytest.mark.parametrize("checks", [None, "", " \n"])
def test_without_output_of_failed_checks_nothing_is_said_about_checks(checks: str | None) -> None:
    run = Run([report("complete")], opening=Opening(run_id="r1", handoff=report("blocked"), failed_checks=checks))
    run.value()
    assert "Failed checks" not in run.calls[0][0]


def test_the_host_lets_every_call_of_the_script_pass() -> None:
    opening = Opening(run_id="r1", handoff=report("blocked"), failed_checks="FAILED")
    run = Run([report("continue", f"round {number} é") for number in range(5)], opening=opening)
    run.value()
    facts = Facts(opening=opening)
    for seq, (prompt, options) in enumerate(run.calls, 1):
        call = CallFacts(
            seq=seq,
            prompt=prompt,
            label=options["label"],
            phase=run.phases[0],
            schema=options["schema"],
            provider=None,
            model=None,
        )
        CONTRACT.check_call(run.args, call, facts)
        facts.calls.append(call)
        delivered = Delivery(seq=seq, outcome=AgentOutcome.COMPLETED, value=run.replies[seq - 1])
        facts.deliveries.append(delivered)
