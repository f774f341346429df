r"""Text on its way to a person: what an agent wrote must not be able to move the cursor, hide or reorder anything.

Characters that control a terminal, change the direction of text or cannot be seen are shown as escapes (`\u202e`).
The ranges are literal, so that a text looks the same on every Python version. Nothing here is ever read as markup.
"""

import json
import re
import time
from typing import Final

_UNSEEN: Final = (
    "\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_LINE: Final = re.compile(f"[\u0000-\u001f{_UNSEEN}]")
_IN_TEXT: Final = re.compile(f"[\u0000-\u0008\u000b-\u001f{_UNSEEN}]")
_IN_JSON: Final = re.compile(f"[{_UNSEEN}]")

CUT_MARK: Final = "…"


def shown_line(text: str, max_chars: int | None = None) -> str:
    """`text` on one line: line breaks and tabs are escaped too; cut to `max_chars` including the mark of the cut."""
    if max_chars is not None and len(text) > 4 * max_chars:
        text = text[: 4 * max_chars]
    return cut(_IN_LINE.sub(_escape, text), max_chars)


def shown_text(text: str, max_chars: int | None = None) -> str:
    """`text` with its line feeds and tabs, everything else that cannot be seen escaped."""
    return cut(_IN_TEXT.sub(_escape, text.replace("\r\n", "\n")), max_chars)


def cut(text: str, max_chars: int | None) -> str:
    """`text`, at most `max_chars` long including the mark of the cut."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return text[: max(0, max_chars - len(CUT_MARK))] + CUT_MARK


def shown_json(value: object, *, indent: int | None = 2) -> str:
    """`value` as JSON for a person or a program: escaped as JSON does what could mislead a terminal."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # Outside of strings JSON is ASCII, so every match stands in a string, where an escape means the same character.
    return _IN_JSON.sub(_escape_json, text)


def plural(count: int, noun: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """A time as a person says it: `8 h`, `1 h 30 min`, `90 s`, `0.4 s`."""
    if seconds < 10:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + " s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    parts = [(whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60, "s")]
    if whole == 86400:
        return "24 h"
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def time_of_day(wall: float, now: float) -> str:
    """A moment (Unix time) as the local time of day, with the date when it is another day than that of `now`."""
    try:
        then, today = time.localtime(wall), time.localtime(now)
    except (OverflowError, ValueError, OSError):
        return "an impossible time"
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def utc_moment(wall: float) -> str:
    """A moment (Unix time) for readers anywhere: `2026-11-30 17:05 UTC`."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(wall))
    except (OverflowError, ValueError, OSError):
        return "an impossible time"


def dollars(amount: float) -> str:
    """Money as a person writes it: `$5.00`; what is less than ten cents with more digits, `$0.0123`."""
    return f"${amount:,.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.4f}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _escape_json(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1] if match.group() != "\x7f" else "\\u007f"
