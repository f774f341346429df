"""What became of a conversation with an agent that speaks the Agent Client Protocol, as a verdict."""

from dataclasses import dataclass
from typing import assert_never

from loopwarden.failure_class import FailureClass
from loopwarden.providers.acp.session import TurnEnd
from loopwarden.providers.acp.talk import Outcome
from loopwarden.providers.dialect import Answer, ProgramEnd, Trouble, Verdict
from loopwarden.providers.error_words import class_of_lines
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkReading:
    """What the conversation gave, in the form in which all agent programs are judged."""

    outcome: Outcome
    how: str
    """How the program ended, such as "ended with exit 1"."""
    hung_up: str | None
    """Why the host stopped talking to it, if it did."""
    denied: int
    """Requests for permission that were not allowed."""
    usage: Usage | None

    def take(self, record: JsonObject) -> str | None:  # noqa: ARG002 - the protocol of readings
        """The session took every record as it came."""
        return None

    def conclude(self, end: ProgramEnd) -> Verdict:
        """An answer, or what stood in its way."""
        match self.outcome:
            case TurnEnd():
                return self._turn_verdict(self.outcome)
            case Trouble():
                return self.outcome
            case None:
                return self._gone(end)
            case _:
                assert_never(self.outcome)

    def _turn_verdict(self, turn: TurnEnd) -> Verdict:
        said = turn.text if turn.text.strip() else None
        match turn.stop_reason:
            case "end_turn":
                return self._silence() if said is None else Answer(text=said)
            case "max_tokens":
                failure_class, reason = FailureClass.LIMIT, "reached the limit of tokens of its model"
            case "max_turn_requests":
                failure_class, reason = FailureClass.LIMIT, "reached its limit of requests to the model"
            case "refusal":
                failure_class, reason = FailureClass.DENIED, "refused to go on with the prompt"
            case "cancelled":
                failure_class, reason = FailureClass.CANCELLED, "ended its turn as cancelled"
            case _:
                assert_never(turn.stop_reason)
        return Trouble(failure_class=failure_class, reason=reason, evidence=said)

    def _silence(self) -> Trouble:
        if self.denied:
            reason = f"said nothing, after {self.denied} of its requests for permission were denied"
            return Trouble(failure_class=FailureClass.DENIED, reason=reason)
        return Trouble(failure_class=FailureClass.INVALID_OUTPUT, reason="ended its turn and said nothing")

    def _gone(self, end: ProgramEnd) -> Verdict:
        if self.hung_up is not None:
            return Trouble(failure_class=FailureClass.CRASHED, reason=f"{self.hung_up}, and was ended")
        reason = f"{self.how} before it had answered"
        found = class_of_lines(end.errors) or class_of_lines(end.plain_output)
        if found is None:
            return Trouble(failure_class=FailureClass.CRASHED, reason=reason)
        failure_class, evidence = found
        return Trouble(failure_class=failure_class, reason=f"{reason}: {evidence}", evidence=evidence)
