"""What became of a program that ended without a terminal record: one rule for every program.

ended by the host, TERM, INT or HUP    the error that it was retrying last, if any; otherwise cancelled
died of KILL                           the same; otherwise crashed
died of any other signal               crashed
exit 0                                 what its error stream explains; otherwise what it gave is not what was asked for
another exit                           what its words explain; otherwise crashed
"""

import signal
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import ProgramEnd, Trouble
from loopwarden.providers.error_words import class_of_lines, delay_in, first_line

_CANCELLING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXIT_OF_SIGNAL: Final = 128
REASONS: Final = {
    FailureClass.AUTH: "could not log in",
    FailureClass.RATE_LIMITED: "was rate limited",
    FailureClass.OVERLOADED: "met an overloaded backend",
    FailureClass.UNAVAILABLE: "could not reach its backend, or the backend failed",
    FailureClass.BILLING: "was refused for want of money or of a plan",
    FailureClass.PROMPT_TOO_LONG: "was given more than its model can read",
    FailureClass.INVALID_OUTPUT: "did not give what was asked for",
    FailureClass.LIMIT: "reached a limit of its own",
    FailureClass.TIMEOUT: "took too long",
    FailureClass.IDLE: "was silent for too long",
    FailureClass.CANCELLED: "was interrupted",
    FailureClass.CRASHED: "failed",
    FailureClass.DENIED: "was not allowed to do what it needed",
    FailureClass.UNKNOWN: "failed for a reason that it did not say",
}
"""A reason for each class, where a program's own words add nothing."""


def was_interrupted(end: ProgramEnd) -> bool:
    """True when the program was ended from outside: by the host, or by a signal that asks to stop."""
    if end.is_cancelled or end.signal in _CANCELLING:
        return True
    return end.exit is not None and end.exit - _EXIT_OF_SIGNAL in _CANCELLING


def _was_ended(end: ProgramEnd) -> bool:
    return was_interrupted(end) or end.signal == signal.SIGKILL


def after_a_result(end: ProgramEnd) -> Trouble | None:
    """What is wrong with the end of a program whose result said that all went well; None when nothing is."""
    if end.exit == 0 or end.is_cancelled:
        return None
    failure_class = FailureClass.CANCELLED if was_interrupted(end) else FailureClass.CRASHED
    return Trouble(failure_class=failure_class, reason=f"gave a result, and then {how(end)}", evidence=how(end))


def without_terminal_record(end: ProgramEnd, retrying: Trouble | None = None) -> Trouble:
    """The verdict on a program that printed no terminal record.

    `retrying`: the error that the program said last to be waiting out, unless it went on since.
    """
    if retrying is not None and retrying.failure_class is not FailureClass.UNKNOWN and _was_ended(end):
        # Whoever lost patience with a program that waits and waits: what it waited for is the reason.
        return retrying
    if was_interrupted(end):
        return Trouble(failure_class=FailureClass.CANCELLED, reason=REASONS[FailureClass.CANCELLED], evidence=how(end))
    if end.signal is not None:
        return Trouble(failure_class=FailureClass.CRASHED, reason=f"was ended by {how(end)}", evidence=how(end))
    return retrying or _explained(end)


def _explained(end: ProgramEnd) -> Trouble:
    # With exit 0, plain output may be an answer in another format than the one that was asked for.
    for text in (end.errors,) if end.exit == 0 else (end.errors, end.plain_output):
        explained = class_of_lines(text)
        if explained is not None:
            failure_class, evidence = explained
            return Trouble(
                failure_class=failure_class,
                reason=REASONS[failure_class],
                evidence=evidence,
                retry_after_seconds=delay_in(evidence),
            )
    said = first_line(end.errors) or first_line(end.plain_output)
    if end.exit == 0:
        return Trouble(failure_class=FailureClass.INVALID_OUTPUT, reason="ended without a result", evidence=said)
    return Trouble(failure_class=FailureClass.CRASHED, reason=f"ended with {how(end)}", evidence=said or how(end))


def how(end: ProgramEnd) -> str:
    """`exit 3`, or `signal SIGKILL`."""
    if end.signal is None:
        return f"exit {end.exit}"
    try:
        return f"signal {signal.Signals(end.signal).name}"
    except ValueError:
        return f"signal {end.signal}"
