"""What every way of failing means, and that no key is ever shown."""

import asyncio
import json
import socket
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwarden import ProviderStartError
from loopwarden.failure_class import FailureClass
from loopwarden.providers.openai.endpoint import open_endpoint
from loopwarden.providers.openai.failures import RetryTimes, broken_transport, retry_times
from support.asking import SCHEMA, ask, ask_once, failure_of, provider_at, reply_of
from support.model_server import (
    CutShort,
    Fail,
    FailInStream,
    ModelServer,
    Raw,
    Say,
    always,
    in_order,
)

NOW = 1_750_000_000.0


# ---- refusals


@pytest.mark.parametrize(
    ("fail", "failure_class", "words"),
    [
        (Fail(status=401, message="Incorrect API key provided"), FailureClass.AUTH, "does not accept the API key"),
        (Fail(status=403, message="forbidden"), FailureClass.AUTH, "does not accept the API key"),
        (
            Fail(status=403, message="flagged by moderation"),
            FailureClass.DENIED,
            "refused the prompt by its rules on content",
        ),
        (Fail(status=402, message="Insufficient Balance"), FailureClass.BILLING, "wants to be paid first"),
        (Fail(status=429, message="Rate limit reached"), FailureClass.RATE_LIMITED, "refused one request too many"),
        (
            Fail(status=429, message="You exceeded your current quota", code="insufficient_quota"),
            FailureClass.BILLING,
            "wants to be paid first",
        ),
        (
            Fail(status=400, message="too many tokens", code="context_length_exceeded"),
            FailureClass.PROMPT_TOO_LONG,
            "the prompt does not fit",
        ),
        (
            Fail(status=400, message="This model's maximum context length is 4096 tokens."),
            FailureClass.PROMPT_TOO_LONG,
            "the prompt does not fit",
        ),
        (Fail(status=413, message="too large"), FailureClass.PROMPT_TOO_LONG, "the prompt does not fit"),
        (Fail(status=400, message="flagged", code="content_filter"), FailureClass.DENIED, "by its rules on content"),
        (Fail(status=400, message="temperature?"), FailureClass.UNKNOWN, "refused the request"),
        (Fail(status=418, message="teapot"), FailureClass.UNKNOWN, "refused the request"),
        (Fail(status=408, message="slow"), FailureClass.UNAVAILABLE, "failed by itself"),
        (Fail(status=500, message="oops"), FailureClass.UNAVAILABLE, "failed by itself"),
        (Fail(status=502, message="bad gateway"), FailureClass.UNAVAILABLE, "failed by itself"),
        (Fail(status=504, message="timeout"), FailureClass.UNAVAILABLE, "failed by itself"),
        (Fail(status=503, message="busy"), FailureClass.OVERLOADED, "is too busy"),
        (Fail(status=529, message="busy"), FailureClass.OVERLOADED, "is too busy"),
    ],
)
def test_each_refusal_has_its_class(
    runner: asyncio.Runner, fail: Fail, failure_class: FailureClass, words: str
) -> None:
    asked = ask_once(runner, in_order(fail), schema=SCHEMA)
    failed = failure_of(asked)
    assert failed.failure_class is failure_class
    assert f"(HTTP {fail.status})" in failed.reason
    assert words in failed.reason
    assert failed.evidence is not None
    assert fail.message in failed.evidence


def test_an_endpoint_that_wants_a_key_says_so(runner: asyncio.Runner) -> None:
    failed = failure_of(ask_once(runner, always(Fail(status=401, message="no")), options={"api_key": None}))
    assert "wants an API key, and this provider has none" in failed.reason


@pytest.mark.parametrize(
    ("body", "evidence"),
    [
        ({"error": {"message": "busy", "type": "server_error", "code": 503}}, "busy [server_error]"),
        ({"error": "busy"}, "busy"),
        ({"object": "error", "message": "busy", "type": "X"}, "busy [X]"),
        ([{"error": {"message": "busy"}}], "busy"),
        ({"detail": "busy"}, "busy"),
        ({"detail": [{"loc": ["body"], "msg": "busy"}]}, '{"loc": ["body"], "msg": "busy"}'),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "busy"}}},
            "Provider returned error busy",
        ),
        ({"error": None}, '{"error": null}'),
        ("busy", '"busy"'),
        (b"<html>\n<b>busy</b></html>", "<html> <b>busy</b></html>"),
        (b"\xff\xfe", "��"),
        (b"", "HTTP 503"),
        (b"[" * 100_000, "[" * 299 + "…"),
        (b"x" * 1_000_000, "x" * 299 + "…"),
    ],
)
def test_the_words_of_the_endpoint_are_the_evidence(runner: asyncio.Runner, body: Any, evidence: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    failed = failure_of(ask_once(runner, always(Raw(pieces=(data,), status=503))))
    assert (failed.failure_class, failed.evidence) == (FailureClass.OVERLOADED, evidence)


def test_a_refusal_whose_body_breaks_off_is_still_that_refusal(runner: asyncio.Runner) -> None:
    answer = Raw(pieces=(b'{"error": {"mess',), status=429, tidy=False)
    assert failure_of(ask_once(runner, always(answer))).failure_class is FailureClass.RATE_LIMITED


@pytest.mark.parametrize(
    ("mode", "message", "setting"),
    [
        ("json_schema", "This response_format type is unavailable now", 'structured_output = "tool"'),
        ("json_schema", "Invalid schema for response_format 'report'", 'structured_output = "tool"'),
        ("tool", "tool_choice is not supported", 'structured_output = "text"'),
        ("tool", "model-1 does not support tools", 'structured_output = "text"'),
        ("text", "Extra inputs are not permitted: stream_options", "asks_usage = false"),
        (
            "text",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            'output_limit_name = "max_completion_tokens"',
        ),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_field_names_the_setting_to_change(
    runner: asyncio.Runner, mode: str, message: str, setting: str, status: int
) -> None:
    """And the request is not repeated without it."""
    options = {"structured_output": mode, "max_output_tokens": 5}
    fail = Fail(status=status, message=message)
    failed = failure_of(ask_once(runner, in_order(fail), options=options, schema=SCHEMA))
    assert (failed.failure_class, failed.evidence) == (FailureClass.UNKNOWN, message)
    assert f"set {setting} for this provider" in failed.reason


@pytest.mark.parametrize(
    "fail",
    [
        Fail(status=404, message="The model `model-1` does not exist", code="model_not_found"),
        Fail(status=404, message="Not Found"),
        Fail(status=405, message="Method Not Allowed"),
        Fail(status=400, message="Model Not Exist"),
    ],
)
def test_a_wrong_model_or_address_ends_the_run_at_once(runner: asyncio.Runner, fail: Fail) -> None:
    with pytest.raises(ProviderStartError) as caught:
        ask_once(runner, in_order(fail))
    assert "has no model 'model-1', or no chat completions at this address" in caught.value.reason
    assert fail.message in caught.value.reason


def test_what_has_answered_before_is_not_misconfigured(runner: asyncio.Runner) -> None:
    """A gateway that loses its routes at night is a backend that failed, for a retry."""

    async def play(url: str) -> None:
        provider = provider_at(url)
        reply_of(await ask(provider))
        assert failure_of(await ask(provider)).failure_class is FailureClass.UNAVAILABLE
        with pytest.raises(ProviderStartError):
            await ask(provider, model="no-such-model")

    gone = Fail(status=404, message="gone")
    with ModelServer(in_order(Say(text="a"), gone, gone)) as server:
        runner.run(play(server.url))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(runner: asyncio.Runner, status: int) -> None:
    with ModelServer(always(Say(text="stolen"))) as other:
        headers = {"location": f"{other.url}/v1/chat/completions?token=abc"}
        with pytest.raises(ProviderStartError) as caught:
            ask_once(runner, always(Raw(pieces=(), status=status, headers=headers)))
        assert other.requests == []
    assert f"sends requests on to {other.url}/v1/chat/completions, which is not followed" in caught.value.reason


# ---- when to try again


@pytest.mark.parametrize(
    ("headers", "said", "expected"),
    [
        ({"retry-after": "7"}, "", RetryTimes(retry_after_seconds=7.0)),
        ({"retry-after": "1.5"}, "", RetryTimes(retry_after_seconds=1.5)),
        ({"retry-after": "0"}, "", RetryTimes(retry_after_seconds=0.0)),
        ({"retry-after-ms": "1500", "retry-after": "2"}, "", RetryTimes(retry_after_seconds=1.5)),
        ({"retry-after": formatdate(NOW + 60, usegmt=True)}, "", RetryTimes(retry_after_seconds=60.0)),
        ({"retry-after": formatdate(NOW - 60, usegmt=True)}, "", RetryTimes(retry_after_seconds=0.0)),
        (
            {"retry-after": formatdate(NOW + 60, usegmt=True), "date": formatdate(NOW + 50, usegmt=True)},
            "",
            RetryTimes(retry_after_seconds=10.0),
        ),
        ({"retry-after": "soon"}, "", RetryTimes()),
        ({"retry-after": "-5"}, "", RetryTimes()),
        ({"retry-after": "nan"}, "", RetryTimes()),
        ({"retry-after": "9" * 12}, "", RetryTimes()),
        ({}, "Please try again in 1m30s.", RetryTimes(retry_after_seconds=90.0)),
        (
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"},
            "",
            RetryTimes(resets_at=NOW + 360),
        ),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1h2m3.5s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "20ms",
            },
            "",
            RetryTimes(resets_at=NOW + 3723.5),
        ),
        (
            {"x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-requests": "6m0s"},
            "",
            RetryTimes(),
        ),
        ({"x-ratelimit-reset-requests": "6m0s"}, "", RetryTimes()),
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW + 30))},
            "",
            RetryTimes(resets_at=NOW + 30),
        ),
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW + 30) * 1000)},
            "",
            RetryTimes(resets_at=NOW + 30),
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, "", RetryTimes()),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": ""}, "", RetryTimes()),
    ],
)
def test_when_to_try_again(headers: dict[str, str], said: str, expected: RetryTimes) -> None:
    found = retry_times(headers, said, now=NOW)
    assert found.retry_after_seconds == pytest.approx(expected.retry_after_seconds)
    assert found.resets_at == pytest.approx(expected.resets_at)


@pytest.mark.parametrize("status", [429, 503])
def test_a_delay_reaches_the_failure(runner: asyncio.Runner, status: int) -> None:
    fail = Fail(status=status, message="slow down", headers={"Retry-After": "12"})
    assert failure_of(ask_once(runner, always(fail))).retry_after_seconds == 12.0


# ---- errors inside of an answer


@pytest.mark.parametrize(
    ("fail", "failure_class"),
    [
        (Fail(status=0, message="Rate limit reached", code="rate_limit_exceeded"), FailureClass.RATE_LIMITED),
        (Fail(status=0, message="The server is overloaded"), FailureClass.OVERLOADED),
        (Fail(status=0, message="insufficient_quota"), FailureClass.BILLING),
        (Fail(status=0, message="invalid api key"), FailureClass.AUTH),
        (Fail(status=0, message="flagged by the content filter"), FailureClass.DENIED),
        (Fail(status=0, message="hm", code="502"), FailureClass.UNAVAILABLE),
        (Fail(status=0, message="hm", code="429"), FailureClass.RATE_LIMITED),
        (Fail(status=0, message="hm"), FailureClass.UNAVAILABLE),
        (Fail(status=0, message=""), FailureClass.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("pieces", [0, 3])
def test_an_error_inside_of_a_stream_has_its_class(
    runner: asyncio.Runner, fail: Fail, failure_class: FailureClass, pieces: int
) -> None:
    failed = failure_of(ask_once(runner, always(FailInStream(fail=fail, said=Say(text="abc"), pieces=pieces))))
    assert failed.failure_class is failure_class
    assert "in the middle of its answer" in failed.reason
    assert failed.evidence
    assert fail.message in failed.evidence


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "busy", "code": 503}}',
        b'[{"error": {"message": "busy", "code": 503}}]',
        b'{"choices": [{"error": {"message": "busy", "code": 503}}]}',
        b'event: error\ndata: {"message": "busy", "code": 503}\n\n',
        b'data: {"object": "error", "message": "busy", "code": 503}\n\n',
        b'data: {"choices": [{"delta": {}, "error": {"message": "busy", "code": 503}}]}\n\n',
    ],
)
def test_an_error_is_one_wherever_it_stands(runner: asyncio.Runner, body: bytes) -> None:
    failed = failure_of(ask_once(runner, always(Raw(pieces=(body,)))))
    assert (failed.failure_class, failed.evidence) == (FailureClass.OVERLOADED, "busy")


# ---- connections


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_refused_connection_is_unavailable(runner: asyncio.Runner) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    failed = failure_of(runner.run(ask(provider_at(url))))
    assert failed.failure_class is FailureClass.UNAVAILABLE
    assert failed.reason == f"the endpoint {url}/v1 cannot be reached; check base_url, and whether it runs"
    assert failed.evidence is not None
    assert "refused" in failed.evidence.lower() or "failed" in failed.evidence.lower()


def test_a_name_that_is_not_known_is_unavailable(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    failed = failure_of(runner.run(ask(provider_at("http://endpoint.invalid"))))
    assert (failed.failure_class, failed.evidence) == (
        FailureClass.UNAVAILABLE,
        "[Errno -2] Name or service not known",
    )
    assert "the name of the endpoint http://endpoint.invalid/v1 is not known" in failed.reason


def test_an_endpoint_without_tls_is_not_asked_in_the_clear(runner: asyncio.Runner) -> None:
    with ModelServer(always(Say(text="a"))) as server:
        failed = failure_of(runner.run(ask(provider_at(server.url.replace("http:", "https:")))))
        assert server.requests == []
    assert failed.failure_class is FailureClass.UNAVAILABLE
    assert "no safe connection to the endpoint" in failed.reason


def test_certificates_that_cannot_be_read_end_the_run(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(ProviderStartError, match="the certificates could not be read"):
        runner.run(ask(provider_at("https://127.0.0.1:1")))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectTimeout(""), "could not be reached in time"),
        (httpx.ProxyError("403 Forbidden"), "the proxy on the way to the endpoint"),
        (httpx.RemoteProtocolError("Server disconnected"), "ended the connection without an answer"),
        (httpx.ReadError(""), "ended the connection without an answer"),
    ],
)
def test_each_way_of_not_reaching_it_has_words(error: Exception, words: str) -> None:
    endpoint = open_endpoint(base_url="http://a", api_key=None, headers={}, proxy_url=None, connect_timeout_seconds=1.0)
    failed = broken_transport(endpoint, error, received_chars=0, has_begun=False, usage=None)
    assert words in failed.reason
    assert failed.failure_class is FailureClass.UNAVAILABLE
    assert failed.evidence == (str(error) or type(error).__name__)


def test_an_endpoint_that_hangs_up_is_unavailable(runner: asyncio.Runner) -> None:
    failed = failure_of(ask_once(runner, always(Raw(pieces=(), tidy=False))))
    assert failed.failure_class is FailureClass.UNAVAILABLE
    failed = failure_of(ask_once(runner, always(CutShort(said=Say(text="abcdef"), pieces=3))))
    assert "broke off after 4 characters of the answer" in failed.reason


def test_the_proxy_of_the_environment_is_not_used(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert reply_of(ask_once(runner, always(Say(text="a")))).text == "a"


def test_a_proxy_that_is_named_is_used(runner: asyncio.Runner) -> None:
    with ModelServer(always(Say(text="by proxy"))) as proxy:
        provider = provider_at("http://endpoint.invalid", proxy_url=proxy.url)
        assert reply_of(runner.run(ask(provider))).text == "by proxy"
