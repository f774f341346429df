"""The `openai` provider: one answer of a model from any chat-completions endpoint. No tools, no files, no turns.

Success needs three witnesses: HTTP 200, a `finish_reason` that says that the model came to its end, and a payload that
satisfies the schema. An answer that breaks off is a failure, never a shorter answer. One ask is one request: what an
endpoint refuses is not asked again in another way; the reason says which setting to change.
"""

import contextlib
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Final, NoReturn, cast, get_args

import httpx

from loopwarden.display import plural
from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, Capabilities, ProviderStartError
from loopwarden.providers.openai.answer import Answer, AnswerBroken, AnswerTooLong, ErrorInAnswer
from loopwarden.providers.openai.endpoint import Endpoint, open_endpoint
from loopwarden.providers.openai.failures import broken_transport, error_in_answer, refused_response
from loopwarden.providers.openai.request import OutputLimitName, StructuredOutput, Style, request_body
from loopwarden.providers.openai.stream import AnswerStream
from loopwarden.providers.openai.verdict import conclude
from loopwarden.run_folder import RunFolderError, write_private_file
from loopwarden.schema import UnsupportedSchema, compile_schema
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, compact_json

MAX_ERROR_BYTES: Final = 64 * 1024
"""Of the body of a refusal."""
PROGRESS_CHARS: Final = 1000
"""Observers are told after so many more characters."""
TOKENS_PER_PRICE: Final = 1_000_000


class OpenAIProvider:
    """Asks one model per call and streams its answer, so that a connection that stalls is noticed.

    Args:
        base_url: Such as `https://api.example.com/v1`; `/chat/completions` is added unless it stands there. Errors show
            it without its query.
        model: The model, unless the call names one.
        api_key: Sent as a bearer token. Never shown.
        structured_output: How a call with a schema is asked for it. `json_schema`: by the response format, which is
            `strict` when the schema keeps OpenAI's rules for that. `tool`: by a tool that the model has to call.
            `text`: by words at the end of the prompt. The value is checked in all three.
        max_output_tokens: The longest answer, thinking included. None: what the endpoint allows.
        output_limit_name: Under which name the endpoint takes `max_output_tokens`. OpenAI's newer models take only
            `max_completion_tokens`, most others only `max_tokens`.
        asks_usage: Ask for the number of tokens at the end of the stream. False for endpoints that refuse
            `stream_options`; then neither tokens nor cost count as known.
        headers: Further headers. Their values are never shown.
        input_price_usd: Price of a million tokens that are read, in US dollars. Tokens from a cache cost as much here.
        output_price_usd: Price of a million tokens that are written. The cost is known with both prices only.
        proxy_url: An HTTP proxy. Those that the environment names are not used.
        connect_timeout_seconds: How long reaching the endpoint may take. Silence after that is measured by the host.

    Raises:
        ValueError: One of these cannot be used. The message names it, and shows no secret.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None = None,
        structured_output: StructuredOutput = "json_schema",
        max_output_tokens: int | None = None,
        output_limit_name: OutputLimitName = "max_tokens",
        asks_usage: bool = True,
        headers: Mapping[str, str] | None = None,
        input_price_usd: float | None = None,
        output_price_usd: float | None = None,
        proxy_url: str | None = None,
        connect_timeout_seconds: float = 15.0,
    ) -> None:
        _check_choice("structured_output", structured_output, get_args(StructuredOutput))
        _check_choice("output_limit_name", output_limit_name, get_args(OutputLimitName))
        if not isinstance(model, str) or not model.strip():
            raise ValueError("model must name a model")
        if max_output_tokens is not None and max_output_tokens < 1:
            raise ValueError("max_output_tokens must be at least 1")
        for price in (input_price_usd, output_price_usd):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ValueError("a price must be a number that is not negative")
        self._endpoint = open_endpoint(
            base_url=base_url,
            api_key=api_key,
            headers=headers or {},
            proxy_url=proxy_url,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        self._model = model
        self._style = Style(
            structured_output=structured_output,
            max_output_tokens=max_output_tokens,
            output_limit_name=output_limit_name,
            asks_usage=asks_usage,
        )
        known = input_price_usd is not None and output_price_usd is not None
        self._prices_usd = (input_price_usd or 0.0, output_price_usd or 0.0) if known else None
        self._answered: set[str] = set()
        """Models that have answered here: for these a missing page is no mistake in the settings."""
        self._capabilities = Capabilities(
            structured_output=True,
            native_schema=structured_output != "text",
            fresh_context=True,
            streams=True,
            tokens_known=asks_usage,
            cost_known=asks_usage and known,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._model!r} at {self._endpoint.name}>"

    @property
    def capabilities(self) -> Capabilities:
        """A native schema unless asked by words, a fresh context, a stream; cost with both prices."""
        return self._capabilities

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Ask once. When cancelled, the connection is closed at once, which ends the work of most endpoints too."""
        try:
            schema = None if request.schema is None else compile_schema(request.schema)
        except UnsupportedSchema as error:
            raise AgentFailed(
                f"the schema of the call cannot be enforced: {error}", failure_class=FailureClass.INVALID_OUTPUT
            ) from None
        model = request.model or self._model
        body = request_body(self._style, prompt=request.prompt, model=model, schema=request.schema)
        stream = AnswerStream(max_answer_bytes=request.max_output_bytes)
        try:
            await self._receive(request, body, model, stream)
            usage = self._priced(stream.answer.usage)
            return conclude(stream, schema, self._style, self._endpoint, usage=usage, asked=model)
        except AgentFailed as failed:
            raise self._endpoint.scrubbed(failed) from None
        finally:
            self._keep(request, stream.answer)

    async def _receive(self, request: AgentRequest, body: JsonObject, model: str, stream: AnswerStream) -> None:
        has_begun = False
        try:
            async with self._endpoint.ask(compact_json(body).encode()) as response:
                if response.status_code != httpx.codes.OK:
                    await self._refuse(response, model, frozenset(body))
                _check_encoding(response, self._endpoint)
                has_begun = True
                self._answered.add(model)
                await self._read(request, response, stream)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise broken_transport(
                self._endpoint,
                error,
                received_chars=stream.answer.written_chars,
                has_begun=has_begun,
                usage=self._priced(stream.answer.usage),
            ) from None
        except ErrorInAnswer as error:
            raise error_in_answer(self._endpoint, error.record, self._priced(stream.answer.usage)) from None
        except AnswerBroken as error:
            raise self._failed(stream, FailureClass.UNAVAILABLE, str(error)) from None
        except AnswerTooLong as error:
            raise self._failed(stream, FailureClass.INVALID_OUTPUT, str(error)) from None

    async def _read(self, request: AgentRequest, response: httpx.Response, stream: AnswerStream) -> None:
        progress = _Progress()
        async with _pieces(response) as pieces:
            async for piece in pieces:
                if stream.feed(piece):
                    request.alive()
                    words = progress.words(stream.answer)
                    if words is not None:
                        request.progress(words)
                if stream.is_done:
                    return
        stream.end()

    async def _refuse(self, response: httpx.Response, model: str, fields: frozenset[str]) -> NoReturn:
        data = b""
        # An error whose own body breaks off is still that error.
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError, OSError):
            async with _pieces(response) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) >= MAX_ERROR_BYTES:
                        break
        refused = refused_response(
            self._endpoint, response.status_code, response.headers, data[:MAX_ERROR_BYTES], model=model, fields=fields
        )
        if isinstance(refused, AgentFailed):
            raise refused
        if model in self._answered:
            raise AgentFailed(refused.reason, failure_class=FailureClass.UNAVAILABLE)
        raise ProviderStartError(refused.reason)

    def _keep(self, request: AgentRequest, answer: Answer) -> None:
        """Keep what the model wrote, whatever became of it: it shows why an answer was not usable."""
        if request.folder is None or not answer.written_chars:
            return
        suffix = "" if request.attempt == 1 else f"-{request.attempt}"
        parts = (answer.text, *(call.arguments for call in answer.tool_calls), answer.refusal)
        written = self._endpoint.without_secrets("\n".join(filter(None, parts)))
        # The record of the run meets the same disk, and says so.
        with contextlib.suppress(RunFolderError):
            write_private_file(request.folder / f"output{suffix}.txt", written.encode("utf-8", "replace"))

    def _failed(self, stream: AnswerStream, failure_class: FailureClass, what: str) -> AgentFailed:
        return AgentFailed(
            f"{self._endpoint.name} {what}",
            failure_class=failure_class,
            usage=self._priced(stream.answer.usage),
        )

    def _priced(self, usage: Usage | None) -> Usage | None:
        if usage is None or self._prices_usd is None or usage.input_tokens is None or usage.output_tokens is None:
            return usage
        price_in, price_out = self._prices_usd
        cost = (usage.input_tokens * price_in + usage.output_tokens * price_out) / TOKENS_PER_PRICE
        return usage + Usage(cost_usd=cost)


class _Progress:
    """Words for observers, now and then."""

    def __init__(self) -> None:
        self._doing = ""
        self._next_chars = 0

    def words(self, answer: Answer) -> str | None:
        """`writing, 1,200 characters`, when it is time to say so."""
        doing, chars = ("writing", answer.written_chars) if answer.written_chars else ("thinking", answer.thought_chars)
        if not chars or (doing == self._doing and chars < self._next_chars):
            return None
        self._doing, self._next_chars = doing, chars + PROGRESS_CHARS
        return f"{doing}, {plural(chars, 'character')}"


def _pieces(response: httpx.Response) -> "contextlib.aclosing[AsyncGenerator[bytes, None]]":
    # It is a generator, whatever its annotation says; one that is left half read has to be closed in this task.
    return contextlib.aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw()))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}")


def _check_encoding(response: httpx.Response, endpoint: Endpoint) -> None:
    # Unpacked, a few bytes can be gigabytes at once; and nobody asked for it.
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise AgentFailed(
            f"{endpoint.name} compressed its answer although it was asked not to; turn that off in the gateway there",
            failure_class=FailureClass.UNAVAILABLE,
        )
