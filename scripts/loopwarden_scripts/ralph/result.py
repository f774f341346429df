"""The terminal result of a run: its shape and meaning, and where its report came from.

Three witnesses have to agree before a result is believed (promise 5): the shape, what the host counted, and what the
host delivered. This file is the whole judgement; it knows nothing about the worker that made the claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never, cast

from loopwarden.contract import AgentOutcome, ContractBroken, Delivery, Facts, ProvenanceBroken
from loopwarden_engine.plain import JsonObject, JsonValue, canonical_bytes
from loopwarden_scripts.ralph.report import Report, ReportBroken, ReportStatus, decode_report

ReportedStatus: TypeAlias = Literal["complete", "blocked", "budget-limited"]

_REPORT_STATUS: Final[dict[str, ReportStatus]] = {
    "complete": "complete",
    "blocked": "blocked",
    "budget-limited": "continue",
}
"""What the report must say, by status of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The last round gave a report. `budget-limited`: it says that work remains, and the rounds are used up."""

    status: ReportedStatus
    rounds_started: int
    report: Report

    def to_json(self) -> JsonObject:
        """The JSON form, as the script returned it."""
        return {"status": self.status, "roundsStarted": self.rounds_started, "report": self.report.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """The agent of the last round failed. `last_report` is from the round before; None exactly in round 1."""

    status: Literal["round-failed"]
    rounds_started: int
    last_report: Report | None

    def to_json(self) -> JsonObject:
        """The JSON form, as the script returned it."""
        last = None if self.last_report is None else self.last_report.to_json()
        return {"status": self.status, "roundsStarted": self.rounds_started, "lastReport": last}


Result: TypeAlias = Reported | RoundFailed


def decode_terminal(value: JsonValue, *, max_rounds: int, max_handoff_chars: int) -> Result:
    """Decode what a script returned, by shape and meaning alone. Raises `ContractBroken`."""
    if type(value) is not dict:
        raise ContractBroken("the script returned no JSON object as its result")
    status = value.get("status")
    if type(status) is not str or status not in (*_REPORT_STATUS, "round-failed"):
        raise ContractBroken("the status of the result is none of complete, blocked, budget-limited, round-failed")
    report_key = "lastReport" if status == "round-failed" else "report"
    if value.keys() != {"status", "roundsStarted", report_key}:
        raise ContractBroken(f"a {status} result must have exactly the keys status, roundsStarted, {report_key}")
    rounds = value["roundsStarted"]
    if type(rounds) is not int or not 1 <= rounds <= max_rounds:
        raise ContractBroken(f"roundsStarted must be a whole number from 1 to {max_rounds}")
    if status == "round-failed":
        last = _decode_last_report(value["lastReport"], rounds, max_handoff_chars)
        return RoundFailed(status="round-failed", rounds_started=rounds, last_report=last)
    report = _decode_report(
        value["report"], _REPORT_STATUS[status], max_handoff_chars, f"the report of the {status} result"
    )
    if status == "budget-limited" and rounds != max_rounds:
        raise ContractBroken(f"the result says budget-limited after {rounds} of {max_rounds} rounds")
    return Reported(status=cast("ReportedStatus", status), rounds_started=rounds, report=report)


def _decode_last_report(value: JsonValue, rounds: int, max_handoff_chars: int) -> Report | None:
    if (value is None) != (rounds == 1):
        raise ContractBroken("lastReport must be null when round 1 failed, and only then")
    return None if value is None else _decode_report(value, "continue", max_handoff_chars, "the last report")


def _decode_report(value: JsonValue, status: ReportStatus, max_handoff_chars: int, name: str) -> Report:
    try:
        report = decode_report(value, max_chars=max_handoff_chars, name=name)
    except ReportBroken as error:
        raise ContractBroken(str(error)) from None
    if report.status != status:
        raise ContractBroken(f"{name} must say {status}, but says {report.status}")
    return report


def check_facts(result: Result, facts: Facts) -> None:
    """Hold a well-formed result against what the host counted and delivered.

    Raises `ContractBroken` when the counts differ, `ProvenanceBroken` when no agent gave the report in its place.
    """
    if result.rounds_started != facts.agents_started:
        raise ContractBroken(
            f"the result claims {result.rounds_started} rounds, but the host started {facts.agents_started} agents",
        )
    if len(facts.deliveries) != facts.agents_started:
        raise ContractBroken("the script returned a result while an agent was still at work")
    _check_earlier(facts.deliveries[:-1])
    last = facts.deliveries[-1]
    match result:
        case Reported():
            if last.outcome is not AgentOutcome.COMPLETED:
                raise ProvenanceBroken(f"the result holds a report, but the agent of round {last.seq} gave none")
            _check_same(result.report, last)
        case RoundFailed():
            if last.outcome is not AgentOutcome.FAILED:
                raise ContractBroken(
                    f"the result says that round {last.seq} failed, but its agent {last.outcome.value}"
                )
            if result.last_report is not None:
                _check_same(result.last_report, facts.deliveries[-2])
        case _:
            assert_never(result)


def _check_earlier(deliveries: Sequence[Delivery]) -> None:
    """Only a continue report leads to another round."""
    for delivery in deliveries:
        value = delivery.value
        if (
            delivery.outcome is not AgentOutcome.COMPLETED
            or type(value) is not dict
            or value.get("status") != "continue"
        ):
            raise ContractBroken(f"round {delivery.seq} gave no continue report, but another round followed")


def _check_same(report: Report, delivery: Delivery) -> None:
    if canonical_bytes(report.to_json()) != canonical_bytes(delivery.value):
        raise ProvenanceBroken(
            f"the report in the result is not the one that the agent of round {delivery.seq} returned"
        )
