"""What the errors of an agent that speaks the Agent Client Protocol mean: a class, a sentence, and the evidence."""

import time
from collections.abc import Mapping
from typing import Final

from acp.exceptions import RequestError

from loopwarden.failure_class import FailureClass
from loopwarden.failures import LoopwardenError
from loopwarden.providers.dialect import Trouble
from loopwarden.providers.error_words import class_of_error, delay_in, evidence_line, reset_in

AUTH_REQUIRED: Final = -32000
REQUEST_CANCELLED: Final = -32800
_HTTP_STATUSES: Final = range(400, 600)
_DETAIL_NAMES: Final = ("details", "detail", "message", "error", "reason")
_MAX_DETAIL_DEPTH: Final = 4
_MAX_DETAIL_CHARS: Final = 20_000
_CODES: Final = {
    AUTH_REQUIRED: FailureClass.AUTH,
    REQUEST_CANCELLED: FailureClass.CANCELLED,
}


class TalkFailed(LoopwardenError):
    """The conversation with an agent came to nothing, for a reason that the agent gave or that its words show."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.reason)
        self.trouble = trouble


def failed_request(error: RequestError, doing: str) -> TalkFailed:
    """The failure that the agent answered a request with. `doing` continues "the agent program failed to …".

    Words go before codes: JSON-RPC leaves -32000 to every server, so it also stands on errors that are no matter of
    credentials.
    """
    text = error_text(error)
    code = error.code if type(error.code) is int else 0
    status = code if code in _HTTP_STATUSES else None
    failure_class = class_of_error(status, text) or _CODES.get(code, FailureClass.UNKNOWN)
    is_limit = failure_class is FailureClass.RATE_LIMITED
    return TalkFailed(
        Trouble(
            failure_class=failure_class,
            reason=f"failed to {doing}: {evidence_line(text)}",
            evidence=evidence_line(f"JSON-RPC error {code}: {text}"),
            retry_after_seconds=delay_in(text),
            resets_at=reset_in(text, now=time.time()) if is_limit else None,
        )
    )


def error_text(error: RequestError) -> str:
    """The message of an error, and the details that agents put beside it. Any of it may be of any type."""
    message = error.args[0] if error.args and isinstance(error.args[0], str) else "an error without a message"
    detail = _detail(error.data)
    return message if detail is None or detail in message else f"{message}: {detail}"


def _detail(data: object) -> str | None:
    for _ in range(_MAX_DETAIL_DEPTH):
        if not isinstance(data, Mapping):
            break
        data = next((data[name] for name in _DETAIL_NAMES if data.get(name)), None)
    return data[:_MAX_DETAIL_CHARS] or None if isinstance(data, str) else None
