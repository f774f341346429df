"""What became of a response with HTTP 200: a reply, or the failure that it is.

no finish_reason, or cut off        unavailable: it broke off
refusal, content_filter             denied
length                              limit: the longest answer was reached
stop, tool_calls                    the payload decides: it satisfies the schema, or is invalidOutput
insufficient_system_resource        overloaded (DeepSeek)
error                               unavailable (gateways, when the backend behind them failed)
any other                           unknown
"""

from typing import Final

from loopwarden.display import plural
from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers.candidates import Found, NotFound, find_value
from loopwarden.providers.error_words import evidence_line
from loopwarden.providers.openai.answer import Answer
from loopwarden.providers.openai.endpoint import Endpoint
from loopwarden.providers.openai.request import NAME, Style
from loopwarden.providers.openai.stream import AnswerStream
from loopwarden.schema import CompiledSchema
from loopwarden.usage import Usage
from loopwarden_engine.json_decoding import decode_object
from loopwarden_engine.plain import MAX_REPLY_VALUES, JsonObject, PlainDataError, canonical_bytes

GOOD_ENDS: Final = ("stop", "tool_calls")
CUT_SHORT: Final = ("length", "model_length", "max_tokens")
BAD_ENDS: Final = {
    "content_filter": (FailureClass.DENIED, "held back the answer by its rules on content"),
    "insufficient_system_resource": (FailureClass.OVERLOADED, "was too busy, and ended its answer early"),
    "error": (FailureClass.UNAVAILABLE, "failed in the middle of its answer"),
}
UNKNOWN_END: Final = (FailureClass.UNKNOWN, "ended its answer for a reason that is not known here")
_MAX_NAME_CHARS: Final = 100


def conclude(
    stream: AnswerStream,
    schema: CompiledSchema | None,
    style: Style,
    endpoint: Endpoint,
    *,
    usage: Usage | None,
    asked: str,
) -> AgentReply:
    """Judge a body that was read to its end. `asked`: the model of the request. Raises `AgentFailed`."""
    answer = stream.answer
    notes = tuple(map(endpoint.without_secrets, _notes(stream, usage, asked)))
    failed = _trouble(stream, style, endpoint)
    if failed is not None:
        failure_class, reason, evidence = failed
        raise AgentFailed(reason, failure_class=failure_class, evidence=evidence, notes=notes, usage=usage)
    try:
        text = _unicode(answer.text)
        if schema is None:
            return AgentReply(text=_plain_text(answer, text), notes=notes, usage=usage)
        if style.structured_output == "tool":
            return AgentReply(text=text, value=_tool_value(answer, schema), notes=notes, usage=usage)
        value, how = _text_value(answer, text, schema)
    except _Unusable as unusable:
        reason = f"{endpoint.name} gave no usable answer: {unusable}"
        raise AgentFailed(reason, failure_class=FailureClass.INVALID_OUTPUT, notes=notes, usage=usage) from None
    return AgentReply(text=text, value=value, notes=(how, *notes), usage=usage)


class _Unusable(Exception):
    """The model came to its end, and its payload is not what was asked for."""


def _trouble(stream: AnswerStream, style: Style, endpoint: Endpoint) -> tuple[FailureClass, str, str | None] | None:
    answer = stream.answer
    if answer.refusal:
        return FailureClass.DENIED, f"the model of {endpoint.name} refused to answer", endpoint.evidence(answer.refusal)
    if answer.finish_reason is None or stream.is_cut_off:
        if answer.model is None and not answer.written_chars:
            reason = f"{endpoint.name} answered without a chat completion; check base_url"
        else:
            reason = f"the answer of {endpoint.name} broke off after {plural(answer.written_chars, 'character')}"
        return FailureClass.UNAVAILABLE, reason, None
    if answer.finish_reason in GOOD_ENDS:
        return None
    evidence = endpoint.evidence(f"finish_reason {answer.finish_reason}")
    if answer.finish_reason in CUT_SHORT:
        limit = "the longest answer that the endpoint allows, or its context"
        if style.max_output_tokens is not None:
            limit = f"max_output_tokens, {style.max_output_tokens:,}, or the context of the model"
        return FailureClass.LIMIT, f"the answer of {endpoint.name} was cut short: it reached {limit}", evidence
    failure_class, words = BAD_ENDS.get(answer.finish_reason, UNKNOWN_END)
    return failure_class, f"{endpoint.name} {words}", evidence


def _plain_text(answer: Answer, text: str) -> str:
    if answer.tool_calls:
        raise _Unusable("the model called a tool, and it has none")
    if not text.strip():
        raise _Unusable("the model said nothing")
    return text


def _text_value(answer: Answer, text: str, schema: CompiledSchema) -> tuple[JsonObject, str]:
    if answer.tool_calls:
        raise _Unusable("the model called a tool, and it has none")
    match find_value(text, schema):
        case Found(value=value, how=how):
            return value, how
        case NotFound(reason=reason):
            raise _Unusable(reason)


def _tool_value(answer: Answer, schema: CompiledSchema) -> JsonObject:
    if not answer.tool_calls:
        raise _Unusable(
            f"the model did not call the tool {NAME!r} that it had to call; "
            'where the endpoint does not hold it to that, set structured_output = "json_schema" or "text"'
        )
    values: dict[bytes, JsonObject] = {}
    for call in answer.tool_calls:
        if call.name != NAME:
            raise _Unusable(f"the model called the tool {call.name[:_MAX_NAME_CHARS]!r}, and it has only {NAME!r}")
        try:
            value = decode_object(_unicode(call.arguments), max_values=MAX_REPLY_VALUES)
        except PlainDataError as error:
            raise _Unusable(f"the arguments of its tool call are not one plain JSON object: {error.reason}") from None
        values[canonical_bytes(value)] = value
    if len(values) > 1:
        raise _Unusable(f"the model called its tool with {len(values)} different values, and exactly one is needed")
    [value] = values.values()
    problem = schema.validate(value)
    if problem is not None:
        raise _Unusable(f"the arguments of its tool call do not satisfy the schema: {problem}")
    return value


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Unusable("it holds half of a character (a lone surrogate)") from None
    return text


def _notes(stream: AnswerStream, usage: Usage | None, asked: str) -> tuple[str, ...]:
    notes = []
    answer = stream.answer
    if answer.model is not None and answer.model != asked:
        notes.append(f"answered by the model {evidence_line(answer.model)[:_MAX_NAME_CHARS]}")
    if stream.form == "document":
        notes.append("the endpoint answered in one piece, although a stream was asked for")
    elif answer.finish_reason is not None and not stream.is_done:
        notes.append("the endpoint ended its stream without [DONE]")
    if usage is None:
        notes.append("the endpoint did not say how many tokens were used")
    return tuple(notes)
