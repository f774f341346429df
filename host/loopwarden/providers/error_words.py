"""What error texts and HTTP statuses mean: their class, the delay and the time of reset that they name.

Give these functions error fields, standard error, and plain output of a program that failed. Never what an agent says
in its answer: an agent that writes "I hit the rate limit" has hit none.

    class_of_status    of an HTTP status
    class_of_text      of an error text, statuses in it included
    class_of_error     of both: where the text knows better, such as a 429 that is about money, it decides
    class_of_lines     of a longer text: the last line that tells, and that line
    delay_in           seconds until another try is welcome
    reset_in           Unix time from which another try is welcome
    epoch_in           the same, only where it stands as a number
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from loopwarden.failure_class import FailureClass
from loopwarden.providers.fields import without_surrogates

MAX_READ_CHARS: Final = 20_000
"""Of a longer text, only the end is read: the last error stands there."""
MAX_EVIDENCE_CHARS: Final = 300
MAX_DELAY_SECONDS: Final = 10_000_000.0
"""About 16 weeks. What is longer is a mistake in reading, and counts as no delay."""

_STATUSES: Final = {
    401: FailureClass.AUTH,
    402: FailureClass.BILLING,
    403: FailureClass.AUTH,
    407: FailureClass.AUTH,
    408: FailureClass.UNAVAILABLE,
    413: FailureClass.PROMPT_TOO_LONG,
    429: FailureClass.RATE_LIMITED,
    503: FailureClass.OVERLOADED,
    529: FailureClass.OVERLOADED,
}
_STATUSES_THAT_TEXT_MAY_CORRECT: Final = (400, 403, 413, 422, 429)


def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


_TOO_LONG: Final = _any_of(
    r"prompt[ _]is[ _]too[ _]long",
    r"(?:prompt|input|context|request)_too_(?:long|large)",
    r"context (?:\w+ )?is too (?:large|long)",
    r"context_length_exceeded|context window (?:exceeded|overflow)|(?:exceed|over)\w* .{0,40}context (?:length|window)",
    r"(?:maximum|max|model'?s) context (?:length|window)",
    r"input (?:token count|length).{0,40}exceed|input exceeds the maximum|stdin input (?:exceeds|truncated)",
    r"maximum prompt (?:length|size)|too many input tokens",
)
_BILLING: Final = _any_of(
    r"credit balance|(?:no|out of|insufficient|not enough) (?:\w+ )?(?:credits?|funds|balance)",
    r"insufficient_(?:quota|funds|credits?|balance)|payment[ _]required|billing|usage_not_included",
    r"(?<!allocated )quota[ _](?:is )?exceeded|free allocated quota|exceeded (?:\w+ ){0,3}quota",
)
_AUTH: Final = _any_of(
    r"\bunauthori[sz]ed|unauthenticated|authentication[ _](?:failed|error|required)|failed to authenticate",
    r"not authenticated|invalid authentication|\btoken has expired",
    r"not logged in|(?:please|must) (?:run )?/?log ?in|permission_error|access denied|\b40[13] forbidden",
    r"(?:invalid|incorrect|wrong|missing|expired|revoked|no|disabled|provide an?) (?:[\w'.-]{1,30} ){0,2}api[- _]?key",
    r"(?:invalid|incorrect|missing|expired|revoked)[ _](?:x-)?(?:api[-_]key|[\w-]{0,20}token|[\w ]{0,20}credentials?)",
    r"api[- _]?key (?:\w+ ){0,3}(?:invalid|missing|required|expired|not (?:found|set|valid))",
    r"missing environment variable|auth method|auth type|api_key_invalid",
)
_RATE_LIMITED: Final = _any_of(
    r"rate[- _]?limit|too many requests|resource[ _](?:has been )?exhausted",
    r"(?:usage|session|hourly|weekly|daily)[ _]limit",
    r"hit your .{0,30}limit|limit reached|throttl|(?:requests|tokens) per (?:min|minute|day|hour)|quota",
)
_OVERLOADED: Final = _any_of(
    r"overloaded|at capacity|high demand|server (?:is|was) (?:too )?busy|service unavailable|temporarily overload",
)
_UNAVAILABLE: Final = _any_of(
    r"econnrefused|econnreset|enotfound|etimedout|eai_again|epipe|und_err|connection_failed",
    r"connect(?:ion)? (?:was |is )?(?:refused|reset|failed|error|closed|timed out|aborted|lost)|connect timeout",
    r"fetch failed|network (?:error|is unreachable)|socket hang up|other side closed|waiting for network",
    r"(?:could not|couldn't|cannot|can't|failed to|unable to) (?:connect|reach|resolve)|getaddrinfo|no route to host",
    r"name or service not known|error sending request|stream (?:disconnected|ended|closed) before|premature close",
    r"request timed out|request timeout|upstream request failed|error: terminated\b",
    r"internal[ _]server[ _]error|server_error|bad gateway|gateway time-?out|empty or malformed response",
)
_BY_WORDS: Final = (
    (_AUTH, FailureClass.AUTH),
    (_RATE_LIMITED, FailureClass.RATE_LIMITED),
    (_OVERLOADED, FailureClass.OVERLOADED),
    (_UNAVAILABLE, FailureClass.UNAVAILABLE),
)
_STATUS: Final = re.compile(
    r"(?:(?:status|error|http|code)(?: code)?\W{0,4}|rejected \(|repeated |^\W{0,3})"
    r"([45]\d\d)(?![\d.:/]|\s*(?:tokens|chars|bytes|ms|s)\b)",
    re.IGNORECASE,
)
# A path such as /account/billing says nothing about the error.
_ADDRESS: Final = re.compile(r"\b[a-z]{2,10}://\S+", re.IGNORECASE)
_USAGE: Final = re.compile(
    r"^\W*(?:error: )?(?:unknown|unexpected|unrecognized|invalid) (?:option|argument|flag|command)s?\b|^usage: ",
    re.IGNORECASE | re.MULTILINE,
)
_ERROR_LINE: Final = re.compile(r"\W{0,4}(?:fatal|error)\b", re.IGNORECASE)
_WARNING_LINE: Final = re.compile(r"\W{0,4}(?:warn|note\b|info\b|hint\b)", re.IGNORECASE)
# Node warns of deprecated calls and of NODE_TLS_REJECT_UNAUTHORIZED in runs that go well, too.
NODE_WARNING: Final = re.compile(r"\(node:\d+\) |\(Use `node --trace-")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT: Final = re.compile(
    r"\s*(?:,|and\b)?\s*(\d{1,12}(?:\.\d{1,9})?)\s*"
    r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])",
    re.IGNORECASE,
)
_DELAY: Final = re.compile(
    r"(?:\b(?:try|retry|retrying|wait|resets?|available)(?: again)? (?:in|after|for)|retry[-_ ]?(?:after|delay)\W{1,5}"
    r"|\bwait)\s*(?:about |another )?(?=\d)",
    re.IGNORECASE,
)
_BARE_SECONDS: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?![\w:/-]|\.\d)")
_RESET_EPOCH: Final = re.compile(
    r"reset\w{0,6}[\W_]{1,4}(?:at\W{1,4})?(\d{10})(?:\d{3})?(?!\d)|limit reached\|(\d{10})(?!\d)", re.IGNORECASE
)
_RESET_DATE: Final = re.compile(r"\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)")
_RESET_CLOCK: Final = re.compile(
    r"\b(?:again at|resets?(?: at)?|available at)\s+(\d{1,2})(?::(\d\d))?\s*([ap])\.?m\b\.?(\s*\(?utc\b)?",
    re.IGNORECASE,
)
_RESET_DAY: Final = re.compile(
    r"\b(?:again at|resets?(?: at| on)?|available at)\s+([a-z]{3})[a-z]{0,6}\.? (\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,? (\d{4}))?,?(?: at)?\s+(\d{1,2})(?::(\d\d))?\s*([ap])\.?m\b\.?(\s*\(?utc\b)?",
    re.IGNORECASE,
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def class_of_status(status: int) -> FailureClass | None:
    """The class of an HTTP status; None when the status does not tell, as 200 and 400 do not."""
    found = _STATUSES.get(status)
    if found is None and 500 <= status <= 599:
        return FailureClass.UNAVAILABLE
    return found


def class_of_text(text: str) -> FailureClass | None:
    """The class of an error text; None when it does not tell."""
    return class_of_error(status_in(text), text)


def class_of_error(status: int | None, text: str) -> FailureClass | None:
    """The class of an error with an HTTP status, if known, and a text."""
    words = _ADDRESS.sub(" ", text[-MAX_READ_CHARS:])
    by_status = None if status is None else class_of_status(status)
    if by_status is None or status in _STATUSES_THAT_TEXT_MAY_CORRECT:
        if _TOO_LONG.search(words):
            return FailureClass.PROMPT_TOO_LONG
        if _BILLING.search(words):
            # "Exceeded your quota, retry in 38s" frees by itself, whatever else it says about plan and billing.
            return FailureClass.BILLING if delay_in(words) is None else FailureClass.RATE_LIMITED
    if by_status is not None:
        return by_status
    for pattern, failure_class in _BY_WORDS:
        if pattern.search(words):
            return failure_class
    return None


def class_of_lines(text: str) -> tuple[FailureClass, str] | None:
    """The class of the last line of `text` that has one, and that line as evidence.

    None when no line has a class, or when the text complains about options: it may print a whole manual then, which
    speaks of everything.
    """
    text = text[-MAX_READ_CHARS:]
    if _USAGE.search(text):
        return None
    for line in reversed(text.splitlines()):
        if NODE_WARNING.match(line):
            continue
        failure_class = class_of_text(line)
        if failure_class is not None:
            return failure_class, evidence_line(line)
    return None


def status_in(text: str) -> int | None:
    """The last HTTP status of an error that `text` names."""
    found = _STATUS.findall(_ADDRESS.sub(" ", text[-MAX_READ_CHARS:]))
    return int(found[-1]) if found else None


def evidence_line(text: str) -> str:
    """`text` as one line of evidence: no colours, no line breaks, at most 300 characters."""
    line = " ".join(_ESCAPES.sub("", without_surrogates(text[:MAX_READ_CHARS])).split())
    return line if len(line) <= MAX_EVIDENCE_CHARS else line[: MAX_EVIDENCE_CHARS - 1] + "…"


def first_line(text: str) -> str | None:
    """The line that says what is wrong, as evidence: the first error, else the first line that is no mere warning.

    The error stands before a stack or a manual.
    """
    found = map(evidence_line, text[:MAX_READ_CHARS].splitlines())
    lines = [line for line in found if line and not NODE_WARNING.match(line)]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    others = [line for line in lines if not _WARNING_LINE.match(line)]
    return next(iter(errors or others or lines), None)


def last_line(text: str) -> str | None:
    """The last line that holds something, as evidence."""
    lines = reversed(text[-MAX_READ_CHARS:].splitlines())
    return next((evidence_line(line) for line in lines if evidence_line(line)), None)


def delay_in(text: str) -> float | None:
    """Seconds to wait, as in "try again in 1.5s", "retry after 3600", "resets in 2h 10m"; None: none named."""
    text = text[-MAX_READ_CHARS:]
    for start in _DELAY.finditer(text):
        seconds, at = 0.0, start.end()
        while amount := _AMOUNT.match(text, at):
            unit = amount[2].lower()
            seconds += float(amount[1]) * _UNIT_SECONDS["ms" if unit.startswith(("ms", "mil")) else unit[0]]
            at = amount.end()
        if at == start.end():
            bare = _BARE_SECONDS.match(text, at)
            if bare is None:
                continue
            seconds = float(bare[1])
        if seconds <= MAX_DELAY_SECONDS:
            return seconds
    return None


def reset_in(text: str, *, now: float) -> float | None:
    """Unix time from which another try is welcome, as `text` names it; None: none named.

    A time of day without a zone is meant locally, as the programs print it, and is the next one after `now`.
    """
    text = text[-MAX_READ_CHARS:]
    if found := _RESET_EPOCH.search(text):
        return _plausible(float(found[1] or found[2]), now)
    if found := _RESET_CLOCK.search(text):
        return _next_time_of_day(found, now)
    if found := _RESET_DAY.search(text):
        return _day_and_time(found, now)
    if "reset" in text.lower() or "again" in text.lower():
        for found in _RESET_DATE.finditer(text):
            try:
                when = datetime.fromisoformat(found[1])
                return _plausible((when if when.tzinfo else when.astimezone()).timestamp(), now)
            except (ValueError, OverflowError, OSError):
                continue
    return None


def epoch_in(text: str) -> float | None:
    """Unix time of a reset, where `text` names it as such: for records that do not say when they were written."""
    found = _RESET_EPOCH.search(text[-MAX_READ_CHARS:])
    return float(found[1] or found[2]) if found else None


def _plausible(when: float, now: float) -> float | None:
    return when if abs(when - now) <= MAX_DELAY_SECONDS else None


def _next_time_of_day(found: re.Match[str], now: float) -> float | None:
    time_of_day = _time_of_day(found[1], found[2], found[3])
    if time_of_day is None:
        return None
    today = datetime.fromtimestamp(now, tz=UTC if found[4] else None)
    when = datetime.combine(today, time_of_day, tzinfo=today.tzinfo)
    if when < today:
        when += timedelta(days=1)
    return when.timestamp()


def _day_and_time(found: re.Match[str], now: float) -> float | None:
    """As in "Dec 3rd, 2026 9:05 AM"; without a year, the next such day after `now`, or the one just passed."""
    time_of_day = _time_of_day(found[4], found[5], found[6])
    if time_of_day is None or found[1].lower() not in _MONTHS:
        return None
    today = datetime.fromtimestamp(now, tz=UTC if found[7] else None)
    month, day = _MONTHS.index(found[1].lower()) + 1, int(found[2])
    for year in (int(found[3]),) if found[3] else (today.year, today.year + 1):
        try:
            when = datetime.combine(date(year, month, day), time_of_day, tzinfo=today.tzinfo)
            plausible = _plausible(when.timestamp(), now)
        except (ValueError, OverflowError, OSError):
            continue
        if plausible is not None:
            return plausible
    return None


def _time_of_day(hour: str, minute: str | None, half: str) -> time | None:
    if not 1 <= int(hour) <= 12 or int(minute or 0) > 59:
        return None
    return time(int(hour) % 12 + (12 if half.lower() == "p" else 0), int(minute or 0))
