"""What became of an attempt: the witnesses of success, and the words for their absence.

Success needs a terminal record and a clear error flag, which the dialect knows; an exit of 0; and a payload that
satisfies the schema, which is looked at here. One witness alone is never enough: programs exit with 0 when they were
cancelled or denied, and some say "success" of an error.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.agent_program import last_line, problem_of
from loopwarden.providers.candidates import MAX_OBJECT_CHARS, Found, NotFound, find_value
from loopwarden.providers.dialect import Answer, ProgramEnd, Reading, Trouble, Verdict
from loopwarden.providers.error_words import reset_in
from loopwarden.providers.home import AgentHome
from loopwarden.providers.process import Ending
from loopwarden.providers.records import RecordReader
from loopwarden.schema import CompiledSchema, UnsupportedSchema, compile_schema
from loopwarden_engine.plain import MAX_REPLY_VALUES, JsonObject, PlainDataError, compact_json, copy_object

MAX_EVIDENCE_CHARS: Final = 500
_CLOCK_SLACK_SECONDS: Final = 120.0
SAYS_NOTHING: Final = frozenset({FailureClass.CANCELLED, FailureClass.CRASHED, FailureClass.UNKNOWN})
"""What a program that the host ended looks like anyway."""

_CLEAN_END: Final = ProgramEnd(exit=0, signal=None, is_cancelled=False, errors="", plain_output="")
_OVERDUE_NOTE: Final = "it did not end after its answer, so the host ended it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAttempt:
    """One attempt that is over: nothing of its program is left."""

    title: str
    """What people call the program."""
    schema: JsonObject | None
    reading: Reading
    reader: RecordReader
    ending: Ending
    max_output_bytes: int
    cancelled: asyncio.CancelledError | None
    """Set when the host ended it."""
    is_overdue: bool = False
    """It gave its answer and did not end, until the host ended it: then its end is no witness."""
    notes: tuple[str, ...]

    def failed(self, trouble: Trouble) -> AgentFailed:
        """The failure that a trouble is."""
        evidence = trouble.evidence
        resets_at = trouble.resets_at
        if trouble.failure_class is FailureClass.RATE_LIMITED and evidence and not resets_at:
            # Some name a time of day and no date. It is printed in minutes, so the present one may just have passed.
            resets_at = reset_in(evidence, now=time.time() - _CLOCK_SLACK_SECONDS)
        if evidence is None and trouble.failure_class in SAYS_NOTHING:
            evidence = last_line(self._errors)
        return AgentFailed(
            f"{self.title} {trouble.reason}",
            notes=(*trouble.notes, *self.notes),
            failure_class=trouble.failure_class,
            evidence=None if evidence is None else _one_line(evidence),
            resets_at=resets_at,
            retry_after_seconds=trouble.retry_after_seconds,
            usage=self.reading.usage,
        )

    def verdict(self) -> Verdict:
        """What the program says of itself, unless its end alone says that it failed."""
        if self.ending.output_excess:
            reason = f"was ended: it printed more than {self.max_output_bytes} bytes"
            return Trouble(failure_class=FailureClass.INVALID_OUTPUT, reason=reason)
        problem = problem_of(self.ending)
        if problem is not None:
            failure_class, reason = problem
            return Trouble(failure_class=failure_class, reason=reason)
        end = ProgramEnd(
            exit=self.ending.exit,
            signal=self.ending.signal,
            is_cancelled=self.cancelled is not None,
            errors=self._errors,
            plain_output=self.reader.plain_output,
        )
        try:
            verdict = self.reading.conclude(_CLEAN_END if self.is_overdue else end)
        except Exception as error:
            raise reading_fault(self.title, error) from error
        if isinstance(verdict, Answer) and self.is_overdue:
            return replace(verdict, notes=(*verdict.notes, _OVERDUE_NOTE))
        if isinstance(verdict, Answer) and self.ending.exit != 0 and self.cancelled is None:
            reason = f"gave an answer, and then {self.ending.how}"
            return Trouble(failure_class=FailureClass.CRASHED, reason=reason, notes=verdict.notes)
        return verdict

    @property
    def _errors(self) -> str:
        return self.ending.errors.decode("utf-8", "replace")


def has_answered(reading: Reading) -> bool:
    """True when the program would have answered if it ended well now."""
    try:
        return isinstance(reading.conclude(_CLEAN_END), Answer)
    except Exception:  # noqa: BLE001 -- a fault of ours, which is told when the attempt is concluded
        return False


def reading_fault(title: str, error: Exception) -> AgentFailed:
    """The failure of an attempt whose reading raised, which is our fault: one odd record must not end a whole run."""
    reason = (
        f"{title} printed something that Loopwarden failed to read; please report it: {type(error).__name__}: {error}"
    )
    return AgentFailed(reason)


async def conclude_at_home(home: AgentHome, run: Callable[[AgentHome], Awaitable[ProgramAttempt]]) -> AgentReply:
    """Run an attempt in a home that is gone when this returns or raises, and say what became of it.

    Raises what `run` raises, `AgentFailed`, or CancelledError when the attempt has nothing to tell.
    """
    try:
        attempt = await run(home)
    except BaseException:
        await home.remove()
        raise
    try:
        await home.remove()
    except asyncio.CancelledError as cancelled:
        # Too late to end the agent, and not too late to say what it used.
        attempt = replace(attempt, cancelled=attempt.cancelled or cancelled)
    if home.problem is not None:
        attempt = replace(attempt, notes=(*attempt.notes, home.problem))
    if attempt.cancelled is None:
        return conclude(attempt)
    raise conclude_cancelled(attempt, attempt.cancelled) from None


def conclude(attempt: ProgramAttempt) -> AgentReply:
    """The reply of an attempt that ended by itself. Raises `AgentFailed`."""
    verdict = attempt.verdict()
    if isinstance(verdict, Trouble):
        raise attempt.failed(verdict)
    if attempt.schema is not None:
        return _structured(attempt, verdict, attempt.schema)
    if not verdict.text.strip():
        raise attempt.failed(_invalid("ended well and said nothing", verdict))
    return AgentReply(text=verdict.text, notes=(*verdict.notes, *attempt.notes), usage=attempt.reading.usage)


def conclude_cancelled(
    attempt: ProgramAttempt, cancelled: asyncio.CancelledError
) -> AgentFailed | asyncio.CancelledError:
    """What to raise for an attempt that the host ended: `cancelled` itself, unless there is something to tell."""
    verdict = attempt.verdict()
    if isinstance(verdict, Trouble) and verdict.failure_class not in SAYS_NOTHING:
        return attempt.failed(verdict)
    if isinstance(verdict, Answer):
        reason = "had given an answer when the host ended it"
    elif attempt.reading.usage is not None:
        reason = "was ended by the host"
    else:
        return cancelled
    return attempt.failed(Trouble(failure_class=FailureClass.CANCELLED, reason=reason, notes=verdict.notes))


def _structured(attempt: ProgramAttempt, answer: Answer, schema: JsonObject) -> AgentReply:
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchema as error:
        raise AgentFailed(f"the schema of the call cannot be enforced: {error}", usage=attempt.reading.usage) from None
    if answer.value is not None:
        value = _checked(attempt, answer, answer.value, compiled)
        return AgentReply(
            text=answer.text, value=value, notes=(*answer.notes, *attempt.notes), usage=attempt.reading.usage
        )
    match find_value(answer.text, compiled):
        case Found(value=value, how=how):
            notes = (how, *answer.notes, *attempt.notes)
            return AgentReply(text=answer.text, value=value, notes=notes, usage=attempt.reading.usage)
        case NotFound(reason=reason, candidates=count):
            note = f"JSON objects looked at in its answer: {count}"
            raise attempt.failed(_invalid(f"gave no usable value: {reason}", answer, answer.text, note))


def _checked(attempt: ProgramAttempt, answer: Answer, value: JsonObject, schema: CompiledSchema) -> JsonObject:
    try:
        checked = copy_object(value, max_chars=MAX_OBJECT_CHARS, max_values=MAX_REPLY_VALUES)
    except PlainDataError as error:
        raise attempt.failed(_invalid(f"gave a value that is not plain JSON: {error}", answer, answer.text)) from None
    mismatch = schema.validate(checked)
    if mismatch is not None:
        reason = f"gave a value that does not fit the schema: {mismatch}"
        raise attempt.failed(_invalid(reason, answer, compact_json(checked)))
    return checked


def _invalid(reason: str, answer: Answer, said: str = "", *notes: str) -> Trouble:
    return Trouble(
        failure_class=FailureClass.INVALID_OUTPUT,
        reason=reason,
        evidence=said if said.strip() else None,
        notes=(*notes, *answer.notes),
    )


def _one_line(text: str) -> str:
    line = " ".join(text[: 2 * MAX_EVIDENCE_CHARS].strip().splitlines())
    return line if len(line) <= MAX_EVIDENCE_CHARS else line[: MAX_EVIDENCE_CHARS - 1] + "…"
