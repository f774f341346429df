"""What a failed ask of a chat-completions endpoint means: class, sentence, evidence, and when to try again.

    refused_response   an HTTP status other than 200
    error_in_answer    an error object where a piece of the answer is due
    broken_transport   httpx could not send the request or read the answer
    retry_times        what the headers of a refusal say about the next try

Classes come from the status and from the error object; what the model writes is never looked at. Endpoints agree on
little, so their words are matched too (`error_words`).
"""

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from loopwarden.display import plural
from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed
from loopwarden.providers.error_words import MAX_DELAY_SECONDS, class_of_error, delay_in
from loopwarden.providers.fields import object_at, text_at
from loopwarden.providers.openai.endpoint import Endpoint
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, JsonValue

WORDS: Final = {
    FailureClass.RATE_LIMITED: "refused one request too many",
    FailureClass.OVERLOADED: "is too busy",
    FailureClass.UNAVAILABLE: "failed by itself",
    FailureClass.BILLING: "wants to be paid first; look at the account behind the key",
    FailureClass.PROMPT_TOO_LONG: "says that the prompt does not fit into the context of the model",
    FailureClass.DENIED: "refused the prompt by its rules on content",
}
_CONTENT_RULES: Final = re.compile(r"content[_ ](?:policy|filter|management)|moderation|responsible ?ai", re.IGNORECASE)
_NO_SUCH_MODEL: Final = re.compile(
    r"\bmodel_not_found\b|\binvalid_model\b|\bmodel\b.{0,120}\b(?:does not exist|not exist|not found)"
    r"|\b(?:unknown|no such|invalid) model\b",
    re.IGNORECASE,
)
_AS_TOOL: Final = 'structured_output = "tool"'
_SETTINGS: Final = (
    ("stream_options", re.compile(r"stream_options|include_usage", re.IGNORECASE), "asks_usage = false"),
    ("max_tokens", re.compile(r"max_completion_tokens"), 'output_limit_name = "max_completion_tokens"'),
    ("response_format", re.compile(r"response_?format|json_?schema|structured.?output", re.IGNORECASE), _AS_TOOL),
    ("tools", re.compile(r"tool_choice|\btools?\b|function.?call", re.IGNORECASE), 'structured_output = "text"'),
)
"""A field of the request, words by which it is refused, and the setting that leaves it out."""
_DURATION: Final = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9})ms)?"
)
_STATUS: Final = re.compile(r"[45]\d\d")
_NUMBER: Final = re.compile(r"\d{1,13}(?:\.\d{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What is wrong with the configuration: no model of that name, no such address. No ask of it can succeed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryTimes:
    """When an endpoint wants to be asked again."""

    retry_after_seconds: float | None = None
    resets_at: float | None = None


def refused_response(
    endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes, *, model: str, fields: frozenset[str]
) -> AgentFailed | Refusal:
    """An HTTP status other than 200. `fields`: the top-level names of the request, to tell which one is refused."""
    said = _words(_error_object(_json_or_none(body))) or body.decode("utf-8", "replace")
    evidence = endpoint.evidence(said)
    shown = f"{endpoint.name} (HTTP {status})"
    if 300 <= status < 400:
        where = endpoint.place_of(headers.get("location", ""))
        return Refusal(
            reason=f"{shown} sends requests on to {where}, which is not followed; set base_url to that place"
        )
    setting = _setting_to_change(status, said, fields)
    if setting is not None:
        reason = f"{shown} does not take what the provider asks for; set {setting} for this provider"
        return AgentFailed(reason, evidence=evidence)
    if status in (404, 405, 410) or (status in (400, 422) and _NO_SUCH_MODEL.search(said)):
        nothing = f"has no model {model!r}, or no chat completions at this address; check model and base_url"
        return Refusal(reason=f"{shown} {nothing}: {evidence}" if evidence else f"{shown} {nothing}")
    failure_class = _class_of(status, said)
    if failure_class is FailureClass.AUTH:
        sentence = _auth_sentence(shown, has_key=endpoint.has_credentials)
    else:
        sentence = f"{shown} {WORDS.get(failure_class, 'refused the request')}"
    times = retry_times(headers, said, now=time.time()) if status in (408, 429) or status >= 500 else RetryTimes()
    return AgentFailed(
        sentence,
        failure_class=failure_class,
        evidence=evidence or f"HTTP {status}",
        retry_after_seconds=times.retry_after_seconds,
        resets_at=times.resets_at,
    )


def error_in_answer(endpoint: Endpoint, record: JsonObject, usage: Usage | None) -> AgentFailed:
    """An error inside of a response that began well. What tells no class is a backend that failed by itself."""
    error = _error_object(record)
    said = _words(error)
    code = str(error.get("code"))
    failure_class = _class_of(int(code) if _STATUS.fullmatch(code) else None, said)
    if failure_class is FailureClass.UNKNOWN:
        failure_class = FailureClass.UNAVAILABLE
    if failure_class is FailureClass.AUTH:
        sentence = _auth_sentence(endpoint.name, has_key=endpoint.has_credentials)
    else:
        sentence = f"{endpoint.name} {WORDS.get(failure_class, 'failed')}"
    return AgentFailed(
        f"{sentence}, in the middle of its answer",
        failure_class=failure_class,
        evidence=endpoint.evidence(said) or "an error without words",
        retry_after_seconds=delay_in(said),
        usage=usage,
    )


def broken_transport(
    endpoint: Endpoint, error: Exception, *, received_chars: int, has_begun: bool, usage: Usage | None
) -> AgentFailed:
    """The request could not be sent, or the answer broke off."""
    causes = list(_causes(error))
    if has_begun:
        reason = (
            f"the connection to {endpoint.name} broke off after {plural(received_chars, 'character')} of the answer"
        )
    elif isinstance(error, httpx.ConnectTimeout):
        reason = f"{endpoint.name} could not be reached in time; check base_url, and whether it runs"
    elif isinstance(error, httpx.ProxyError):
        reason = f"the proxy on the way to {endpoint.name} refused the connection; check proxy_url"
    elif any(isinstance(cause, ssl.SSLError) for cause in causes):
        reason = f"no safe connection to {endpoint.name} could be made; check base_url and the certificate there"
    elif any(isinstance(cause, socket.gaierror) for cause in causes):
        reason = f"the name of {endpoint.name} is not known; check base_url and the network"
    elif isinstance(error, httpx.ConnectError):
        reason = f"{endpoint.name} cannot be reached; check base_url, and whether it runs"
    else:
        reason = f"{endpoint.name} ended the connection without an answer"
    told = next((text for cause in causes if (text := str(cause).strip())), type(error).__name__)
    return AgentFailed(
        reason,
        failure_class=FailureClass.UNAVAILABLE,
        evidence=endpoint.evidence(told),
        usage=usage,
    )


def retry_times(headers: Mapping[str, str], said: str, *, now: float) -> RetryTimes:
    """What the headers, else the words of a refusal, say about the next try. `now` is a Unix time.

    `retry-after-ms`, `retry-after` (RFC 9110, 10.2.3: seconds or a date), then `x-ratelimit-reset*` of the limits that
    are used up. A bare number of seconds in the latter is left alone: endpoints mean different things by it.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _after(milliseconds / 1000)
    given = headers.get("retry-after", "")
    seconds = _number(given)
    if seconds is not None:
        return _after(seconds)
    moment = _date(given)
    if moment is not None:
        # By the server's own clock, where it tells the time: ours may differ.
        return _after(max(0.0, moment - (_date(headers.get("date", "")) or now)))
    resets = [
        reset
        for name, value in headers.items()
        if name.startswith("x-ratelimit-reset") and _is_used_up(headers, name)
        for reset in (_reset(value.strip(), now),)
        if reset is not None
    ]
    if resets:
        return RetryTimes(resets_at=max(resets))
    delay = delay_in(said)
    return RetryTimes() if delay is None else _after(delay)


def _class_of(status: int | None, said: str) -> FailureClass:
    if status in (400, 403, 422, None) and _CONTENT_RULES.search(said):
        return FailureClass.DENIED
    return class_of_error(status, said) or FailureClass.UNKNOWN


def _auth_sentence(shown: str, *, has_key: bool) -> str:
    if has_key:
        return f"{shown} does not accept the API key, or does not allow it to be used for this; check the key"
    return f"{shown} wants an API key, and this provider has none; give it one"


def _setting_to_change(status: int, said: str, fields: frozenset[str]) -> str | None:
    if status not in (400, 422) or class_of_error(status, said) is FailureClass.PROMPT_TOO_LONG:
        return None
    for field, pattern, setting in _SETTINGS:
        if field in fields and pattern.search(said):
            return setting
    return None


def _json_or_none(body: bytes) -> JsonValue:
    try:
        value: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value


def _error_object(body: JsonValue) -> JsonObject:
    """The part of an error body that describes the error. Endpoints wrap it in different ways, or not at all."""
    if isinstance(body, list):
        body = body[0] if body else None
    if not isinstance(body, dict):
        return {}
    error = body.get("error")
    if isinstance(error, str):
        return {"message": error, "code": body.get("code")}
    return error if isinstance(error, dict) else body


def _words(error: JsonObject) -> str:
    """The message with the marks that tell its kind, as one text."""
    detail = error.get("detail")
    message = text_at(error, "message") or text_at(error, "msg") or text_at(error, "detail")
    if message is None and isinstance(detail, list) and detail:
        message = json.dumps(detail[0], ensure_ascii=False)
    marks = [text_at(error, name) for name in ("code", "type", "param")]
    raw = text_at(object_at(error, "metadata"), "raw")  # Gateways put the words of the real backend there.
    return " ".join(filter(None, (message, raw, *(f"[{mark}]" for mark in marks if mark))))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """From the innermost cause out, groups included. What httpx itself says comes last: it says the least."""
    inner = error.__cause__ or error.__context__
    if inner is not None:
        yield from _causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    yield error


def _after(seconds: float) -> RetryTimes:
    return RetryTimes(retry_after_seconds=seconds) if seconds <= MAX_DELAY_SECONDS else RetryTimes()


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text.strip()).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _is_used_up(headers: Mapping[str, str], reset_name: str) -> bool:
    return _number(headers.get(reset_name.replace("-reset", "-remaining"), "")) == 0


def _reset(text: str, now: float) -> float | None:
    """A Unix time out of a duration with units (`6m0s`), or a Unix time in seconds or milliseconds."""
    number = _number(text)
    if number is not None:
        epoch = number / 1000 if number >= 1e12 else number
        return epoch if abs(epoch - now) <= MAX_DELAY_SECONDS else None
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(group or 0) for group in found.groups())
    duration = days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return now + duration if duration <= MAX_DELAY_SECONDS else None
