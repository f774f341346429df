"""What a person may see of an exception that a script let through: type, message, lines of the script."""

from typing import Final, NamedTuple

from .compilation import SCRIPT_FILENAME
from .text import exception_text

MAX_MESSAGE_CHARS: Final = 4_000
MAX_LINES: Final = 100
_MAX_TYPE_CHARS: Final = 200
_CUT: Final = "… [cut]"


class ScriptFault(NamedTuple):
    """An exception in plain data. `line` is the innermost line of the script, `lines` all of them, outermost first.

    `line` is None when no frame of the script was left. `lines` keeps the first and the last `MAX_LINES / 2`.
    """

    type_name: str
    message: str
    line: int | None
    lines: list[int]


def describe_exception(error: BaseException) -> ScriptFault:
    """Describe an exception without paths, addresses or frames of ours. Never raises.

    Causes and contexts are not followed, so a chain of any length costs nothing.
    """
    lines = _script_lines(error)
    return ScriptFault(
        type_name=cut(type(error).__name__, _MAX_TYPE_CHARS),
        message=cut(_message(error), MAX_MESSAGE_CHARS),
        line=lines[-1] if lines else None,
        lines=lines if len(lines) <= MAX_LINES else lines[: MAX_LINES // 2] + lines[-MAX_LINES // 2 :],
    )


def _message(error: BaseException) -> str:
    try:
        return exception_text(error)
    except Exception:  # noqa: BLE001 -- a description is total
        # A value too deep or too large for text; its size must not decide whether the run can be reported.
        return "[the message could not be shown]"


def _script_lines(error: BaseException) -> list[int]:
    lines: list[int] = []
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == SCRIPT_FILENAME:
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return lines


def cut(text: str, limit_chars: int) -> str:
    """Cut text to `limit_chars` including a visible mark; replace lone surrogates, which no message may hold."""
    if len(text) > limit_chars:
        text = text[: limit_chars - len(_CUT)] + _CUT
    return text.encode("utf-8", "replace").decode("utf-8")
