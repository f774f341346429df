"""What error texts mean: their class, the delay and the time of reset that they name."""

from datetime import UTC, datetime

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.providers.dialect import ProgramEnd, Trouble
from loopwarden.providers.dialects.endings import without_terminal_record
from loopwarden.providers.error_words import (
    class_of_error,
    class_of_lines,
    class_of_status,
    class_of_text,
    delay_in,
    first_line,
    reset_in,
    status_in,
)

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()
QUOTA = "You exceeded your current quota, please check your plan and billing details."


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", FailureClass.RATE_LIMITED),
        ("You’ve hit your usage limit. See https://x.test/billing or buy more credits", FailureClass.RATE_LIMITED),
        ("unexpected status 529 <unknown status code>: x, url: http://127.0.0.1:401/v1", FailureClass.OVERLOADED),
        ("We’re currently experiencing high demand", FailureClass.OVERLOADED),
        ("HTTP 503", FailureClass.OVERLOADED),
        ("status 504 Gateway Timeout", FailureClass.UNAVAILABLE),
        ("[API Error: Connection error. (cause: connect ECONNREFUSED)]", FailureClass.UNAVAILABLE),
        ('{"error":{"code":401,"message":"no"}}', FailureClass.AUTH),
        ("Incorrect API key provided: sk-…", FailureClass.AUTH),
        ("Missing environment variable: `X`", FailureClass.AUTH),
        (QUOTA, FailureClass.BILLING),
        (f"429 {QUOTA}", FailureClass.BILLING),
        (f"429 {QUOTA} Please retry in 37.9s.", FailureClass.RATE_LIMITED),
        ("402 Payment Required", FailureClass.BILLING),
        ("This model's maximum context length is 8192 tokens", FailureClass.PROMPT_TOO_LONG),
        ("bad request", None),
        ("Reached maximum number of turns (429)", None),
        ("read 429 tokens", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_class_of_an_error_text(text: str, failure_class: FailureClass | None) -> None:
    assert class_of_text(text) is failure_class


@pytest.mark.parametrize(
    ("status", "failure_class"),
    [
        (200, None), (400, None), (401, FailureClass.AUTH), (402, FailureClass.BILLING), (403, FailureClass.AUTH),
        (404, None), (429, FailureClass.RATE_LIMITED), (500, FailureClass.UNAVAILABLE), (503, FailureClass.OVERLOADED),
        (529, FailureClass.OVERLOADED), (599, FailureClass.UNAVAILABLE), (600, None), (-1, None),
    ],
)  # fmt: skip
def test_the_class_of_a_status(status: int, failure_class: FailureClass | None) -> None:
    assert class_of_status(status) is failure_class


def test_a_status_that_tells_is_corrected_by_words_of_money_and_length_only() -> None:
    assert class_of_error(429, "insufficient_quota") is FailureClass.BILLING
    assert class_of_error(400, "prompt is too long") is FailureClass.PROMPT_TOO_LONG
    assert class_of_error(500, "billing service failed") is FailureClass.UNAVAILABLE
    assert class_of_error(401, "rate limit") is FailureClass.AUTH
    assert class_of_error(None, "rate limit") is FailureClass.RATE_LIMITED
    assert status_in("status 429, then status: 500") == 500


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("retry after 3600s", 3600.0),
        ("Retry-After: 30", 30.0),
        ('"retryDelay": "17s"', 17.0),
        ("resets in 2h 10m", 7800.0),
        ("wait 5 minutes and 3 seconds", 303.0),
        ("retrying in 250ms", 0.25),
        ("try again at 2:27 PM", None),
        ("retry after 2026-11-30T10:00:00Z", None),
        ("try again in 99999999999999 days", None),
        ("try again later", None),
    ],
)
def test_the_delay_that_a_text_names(text: str, seconds: float | None) -> None:
    assert delay_in(text) == seconds


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("resets 2:30pm (UTC)", 2.5),
        ("resets 11am (UTC)", 23.0),
        ("resets 12am (UTC)", 12.0),
        ("Try again after 2026-11-30T13:00:00Z", 1.0),
        (f"limit reached|{int(NOON) + 7200}", 2.0),
        (f'"resets_at": {int(NOON) + 3600}', 1.0),
        ('"resets_at": 1000000000', None),
        ("resets 13:70pm", None),
        ("resets Dec 3, 2pm (UTC)", 3 * 24 + 2.0),
        ("resets Dec 3rd, 2026 at 2:30 PM UTC", 3 * 24 + 2.5),
        ("resets Jan 2 at 12pm (UTC)", 33 * 24.0),
        ("resets Dec 32, 2pm (UTC)", None),
        ("resets Doc 3, 2pm (UTC)", None),
        ("resets Dec 3rd, 9999 2pm (UTC)", None),
        ("try again later", None),
    ],
)
def test_the_time_of_reset_that_a_text_names(text: str, hours: float | None) -> None:
    assert reset_in(text, now=NOON) == (None if hours is None else NOON + hours * 3600)


def test_the_last_line_that_tells_is_the_evidence_and_a_manual_tells_nothing() -> None:
    lines = "Error: status 500\n\x1b[31mError: status 429\x1b[0m\nbye\n"
    assert class_of_lines(lines) == (FailureClass.RATE_LIMITED, "Error: status 429")
    assert class_of_lines("Unknown argument: x\n  --rate-limit   rate limit of requests\n") is None
    assert class_of_lines("nothing\n") is None
    assert first_line("Warning: slow\n\nError: no input\n  at x\n") == "Error: no input"
    assert first_line("Warning: slow\nsomething\n") == "something"
    assert first_line(" \n") is None


@pytest.mark.parametrize(
    "piece", ["invalid ", "exceeded ", "wait 1 ", "hit your ", "resets ", "1.1", "no x x ", "error: "]
)
def test_a_hostile_text_does_not_hold_up_the_host(piece: str) -> None:
    text = piece * 100_000
    assert class_of_lines(text) is None or class_of_text(text) is not None
    assert reset_in(text, now=NOON) is None


@pytest.mark.parametrize(
    ("end", "failure_class"),
    [
        ({"exit": 0}, FailureClass.INVALID_OUTPUT),
        ({"exit": 0, "plain_output": "I met a rate limit."}, FailureClass.INVALID_OUTPUT),
        ({"exit": 0, "errors": "Error: status 429"}, FailureClass.RATE_LIMITED),
        ({"exit": 1}, FailureClass.CRASHED),
        ({"exit": 1, "plain_output": "Invalid API key"}, FailureClass.AUTH),
        ({"exit": 143}, FailureClass.CANCELLED),
        ({"exit": 130}, FailureClass.CANCELLED),
        ({"signal": 15}, FailureClass.CANCELLED),
        ({"signal": 2}, FailureClass.CANCELLED),
        ({"signal": 9}, FailureClass.CRASHED),
        ({"signal": 11}, FailureClass.CRASHED),
        ({"signal": 9, "is_cancelled": True}, FailureClass.CANCELLED),
    ],
)
def test_an_end_without_a_terminal_record(end: dict[str, object], failure_class: FailureClass) -> None:
    fields = {"exit": None, "signal": None, "is_cancelled": False, "errors": "", "plain_output": ""} | end
    found = without_terminal_record(ProgramEnd(**fields))  # type: ignore[arg-type]
    assert found.failure_class is failure_class


def test_an_error_that_was_being_retried_explains_the_end_unless_the_program_crashed() -> None:
    def after(**end: object) -> FailureClass:
        fields = {"exit": None, "signal": None, "is_cancelled": False, "errors": "", "plain_output": ""} | end
        retrying = Trouble(failure_class=FailureClass.OVERLOADED, reason="met an overloaded backend")
        return without_terminal_record(ProgramEnd(**fields), retrying).failure_class  # type: ignore[arg-type]

    assert after(exit=143) is FailureClass.OVERLOADED
    assert after(signal=15) is FailureClass.OVERLOADED
    assert after(exit=1) is FailureClass.OVERLOADED
    assert after(signal=9, is_cancelled=True) is FailureClass.OVERLOADED
    assert after(signal=9) is FailureClass.OVERLOADED
    assert after(signal=11) is FailureClass.CRASHED
