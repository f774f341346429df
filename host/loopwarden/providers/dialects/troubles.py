"""Troubles made of error texts, and error streams without the lines that a program prints in every run."""

import re
from dataclasses import replace

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import ProgramEnd, Trouble
from loopwarden.providers.dialects.endings import REASONS
from loopwarden.providers.error_words import NODE_WARNING, class_of_error, delay_in, epoch_in, evidence_line, status_in


def trouble_of_error(
    text: str,
    *,
    status: int | None = None,
    otherwise: FailureClass = FailureClass.UNKNOWN,
    retry_after_seconds: float | None = None,
    resets_at: float | None = None,
) -> Trouble:
    """The trouble that an error text stands for.

    Args:
        text: The error in the program's words.
        status: The HTTP status, where a record says it; else it is looked for in the text.
        otherwise: The class when neither status nor text tells one.
        retry_after_seconds: The delay, where a record says it; else it is looked for in the text.
        resets_at: Unix time of the reset, where a record says it; else it is looked for in the text.
    """
    failure_class = class_of_error(status_in(text) if status is None else status, text) or otherwise
    return Trouble(
        failure_class=failure_class,
        reason=REASONS[failure_class],
        evidence=evidence_line(text) or None,
        resets_at=epoch_in(text) if resets_at is None else resets_at,
        retry_after_seconds=delay_in(text) if retry_after_seconds is None else retry_after_seconds,
    )


def trouble(failure_class: FailureClass, evidence: str | None, reason: str | None = None) -> Trouble:
    """A trouble whose class is known."""
    return Trouble(
        failure_class=failure_class,
        reason=reason or REASONS[failure_class],
        evidence=(evidence_line(evidence) or None) if evidence else None,
    )


def without_lines(end: ProgramEnd, usual: re.Pattern[str]) -> ProgramEnd:
    """`end` without the lines of standard error that match `usual`: they stand there in runs that go well, too."""
    lines = [line.removeprefix("\ufeff") for line in end.errors.splitlines()]
    kept = [line for line in lines if not usual.search(line) and not NODE_WARNING.match(line)]
    return replace(end, errors="\n".join(kept))
