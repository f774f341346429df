"""What Ralph means to the host: the calls that its script may make, and the results that are believed.

Nothing here imports or reads `loop.py`. The rules are kept twice, by two pieces of code in two trust domains.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from loopwarden.contract import (
    AgentOutcome,
    CallFacts,
    Conclusion,
    Contract,
    ContractBroken,
    Delivery,
    Facts,
    Opening,
)
from loopwarden.failures import ArgsInvalid
from loopwarden.provider import Capabilities
from loopwarden_engine.plain import JsonObject, JsonValue, canonical_bytes
from loopwarden_scripts.ralph.args import Args, RalphSettings, decode_args
from loopwarden_scripts.ralph.rendering import conclude, render_text
from loopwarden_scripts.ralph.report import REPORT_SCHEMA, Report, ReportBroken, decode_report, handoff_text
from loopwarden_scripts.ralph.result import Result, check_facts, decode_terminal

PHASE: Final = "Fresh-agent rounds"
MAX_FAILED_CHECKS_CHARS: Final = 16_384
_CUT_MARK: Final = "[earlier output cut]\n"
_SCHEMA_BYTES: Final = canonical_bytes(REPORT_SCHEMA)


class RalphContract(Contract[Args, Result]):
    """The contract of Ralph under the settings of a deployment."""

    requires = Capabilities(structured_output=True, fresh_context=True)
    args_model = Args

    def __init__(self, settings: RalphSettings) -> None:
        """Bind the contract to `settings`."""
        self.settings: Final = settings

    @property
    def continues(self) -> bool:
        """A run can be continued: its last handoff begins the next one."""
        return True

    def decode_args(self, args: object) -> Args:
        """Check `Args` or a dict in JSON form. Raises `ArgsInvalid`."""
        return decode_args(args, self.settings)

    def max_total_agents(self, args: Args) -> int:
        """One agent a round: the cap is the number of rounds."""
        return self.settings.default_rounds if args.max_rounds is None else args.max_rounds

    def raised_args(self, args: Args, limits: Mapping[str, int | float | None]) -> JsonObject:
        """More agents are more rounds; no prompt mentions how many there may be."""
        total = limits.get("max_total_agents")
        return {} if total is None else {"maxRounds": total}

    def script_args(self, args: Args, opening: Opening | None) -> JsonObject:
        """What `main(args)` gets. Raises `ArgsInvalid` when the handoff of the run to continue breaks the rules."""
        handoff = self._opening_handoff(opening)
        return {
            "objective": args.objective,
            "maxRounds": self.max_total_agents(args),
            "maxHandoffChars": self.settings.max_handoff_chars,
            "handoff": None if handoff is None else handoff.to_json(),
            "failedChecks": _failed_checks(opening),
        }

    def check_call(self, args: Args, call: CallFacts, facts: Facts) -> None:
        """Check one round's call before it is charged. Raises `ContractBroken`."""
        number = len(facts.calls) + 1
        handoff, failed_checks = self._before_round(number, facts)
        if call.label != f"Ralph round {number}":
            raise ContractBroken(f"call {number} does not have the label Ralph round {number}")
        if call.phase != PHASE:
            raise ContractBroken(f"call {number} is not in the phase {PHASE}")
        if call.schema is None or canonical_bytes(call.schema) != _SCHEMA_BYTES:
            raise ContractBroken(f"call {number} does not ask for the report that Ralph's schema describes")
        if call.provider is not None or call.model is not None:
            raise ContractBroken(f"call {number} chooses a provider or a model; only the deployment may do that")
        if args.objective not in call.prompt:
            raise ContractBroken(f"the prompt of call {number} does not hold the objective word for word")
        if handoff is not None and handoff_text(handoff) not in call.prompt:
            raise ContractBroken(f"the prompt of call {number} does not hold the last handoff as it was delivered")
        if failed_checks is not None and failed_checks not in call.prompt:
            raise ContractBroken(f"the prompt of call {number} does not hold the output of the failed checks")

    def decode_result(self, args: Args, value: JsonValue, facts: Facts) -> Result:
        """Believe a result, or raise `ContractBroken` or `ProvenanceBroken`."""
        result = decode_terminal(
            value,
            max_rounds=self.max_total_agents(args),
            max_handoff_chars=self.settings.max_handoff_chars,
        )
        check_facts(result, facts)
        return result

    def conclusion(self, args: Args, result: Result) -> Conclusion:
        """The result in words: what the agent claimed."""
        return conclude(result)

    def parent_text(self, result: Result) -> str:
        """The text for a parent, cut to `max_result_chars`, mark included."""
        return render_text(conclude(result), self.settings.max_result_chars)

    def last_handoff(
        self,
        args: Args,
        deliveries: Sequence[Delivery],
    ) -> JsonObject | None:
        """The last report that an agent of the run gave and that keeps the rules, whatever its status."""
        for delivery in reversed(deliveries):
            report = self._delivered_report(delivery)
            if report is not None:
                return report.to_json()
        return None

    def _before_round(self, number: int, facts: Facts) -> tuple[Report | None, str | None]:
        """The handoff and the failed checks that the prompt of round `number` must hold."""
        if number == 1:
            return self._opening_handoff(facts.opening), _failed_checks(facts.opening)
        if len(facts.deliveries) < len(facts.calls):
            raise ContractBroken(f"call {number} was made while the agent of an earlier round was still at work")
        report = self._delivered_report(facts.deliveries[-1])
        if report is None:
            raise ContractBroken(f"call {number} was made after a round that gave no valid report")
        if report.status != "continue":
            raise ContractBroken(f"call {number} was made after a round that reported {report.status}")
        return report, None

    def _delivered_report(self, delivery: Delivery) -> Report | None:
        if delivery.outcome is not AgentOutcome.COMPLETED:
            return None
        try:
            return decode_report(delivery.value, max_chars=self.settings.max_handoff_chars)
        except ReportBroken:
            return None

    def _opening_handoff(self, opening: Opening | None) -> Report | None:
        if opening is None or opening.handoff is None:
            return None
        name = f"the handoff of run {opening.run_id}"
        try:
            return decode_report(opening.handoff, max_chars=self.settings.max_handoff_chars, name=name)
        except ReportBroken as error:
            raise ArgsInvalid(f"{error}; start a new run instead of continuing that one") from None


def _failed_checks(opening: Opening | None) -> str | None:
    """The output of failed checks as the first prompt shows it: its end, where the error usually stands."""
    output = None if opening is None else opening.failed_checks
    if output is None or not output.strip():
        return None
    if len(output) <= MAX_FAILED_CHECKS_CHARS:
        return output
    return _CUT_MARK + output[len(_CUT_MARK) - MAX_FAILED_CHECKS_CHARS :]
