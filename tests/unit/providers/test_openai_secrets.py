"""No key is ever shown, and what a deployment gives wrong is refused with words."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from loopwarden import ProviderStartError
from loopwarden.providers.openai.provider import OpenAIProvider
from support.asking import KEY, SCHEMA, ask_once, failure_of, provider_at
from support.model_server import Fail, FailInStream, ModelAnswer, Raw, Say, Structured, always


def echoes(text: str) -> list[ModelAnswer]:
    """Every place where an endpoint can put the words of its choice."""
    first = (
        b"data: " + json.dumps({"choices": [{"delta": {"refusal": text}, "finish_reason": "stop"}]}).encode() + b"\n\n"
    )
    finish = b"data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": text}]}).encode() + b"\n\n"
    tool = {"index": 0, "function": {"name": text, "arguments": "{}"}}
    called = json.dumps({"choices": [{"delta": {"tool_calls": [tool]}, "finish_reason": "stop"}]}).encode()
    model = json.dumps({"model": text, "choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]}).encode()
    return [
        Fail(status=401, message=text),
        Fail(status=400, message="x" * (298 - len(text) // 2) + text),
        Fail(status=429, message="slow", code=text),
        Raw(pieces=(text.encode(),), status=500),
        FailInStream(fail=Fail(status=0, message=text)),
        Raw(pieces=(first,)),
        Raw(pieces=(finish,)),
        Raw(pieces=(b"data: " + called + b"\n\n",)),
        Raw(pieces=(model,)),
        Structured(value={"n": text, "word": "a"}),
        Say(text=json.dumps({text: 1}), finish="length"),
    ]


@pytest.mark.parametrize("mode", ["json_schema", "tool"])
def test_the_key_is_in_no_text(
    runner: asyncio.Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    caplog.set_level(logging.INFO)  # Below that, HTTP libraries write down what an endpoint sends in its headers.
    options = {"structured_output": mode, "headers": {"x-gateway": "Basic header-secret-99"}}
    seen: list[str] = []
    for text in (KEY, "Basic header-secret-99", f"Bearer {KEY}", "header-secret-99"):
        for number, answer in enumerate(echoes(text), 1):
            asked = ask_once(runner, always(answer), options=options, schema=SCHEMA, folder=tmp_path, attempt=number)
            failed = failure_of(asked)
            seen += [failed.reason, str(failed), repr(failed), failed.evidence or "", *failed.notes]
    for status in (404, 307):
        with pytest.raises(ProviderStartError) as caught:
            ask_once(
                runner,
                always(Fail(status=status, message=f"no {KEY}", headers={"location": f"http://a/{KEY}"})),
                options=options,
            )
        seen += [caught.value.reason, str(caught.value)]
    seen += [path.read_text() for path in tmp_path.iterdir()]
    provider = provider_at("http://127.0.0.1:1", **options)
    seen += [repr(provider), str(provider), repr(provider._endpoint), caplog.text]
    shown = "\n".join(seen)
    assert len(seen) > 4 * 11 * 4
    assert "[secret]" in shown
    for secret in (KEY, "header-secret-99", KEY[:10]):
        assert secret not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "ftp://a"}, "base_url must begin with https:// or http://"),
        ({"base_url": "api.example.com/v1"}, "base_url must begin with https:// or http://"),
        ({"base_url": "http://"}, "and name a host"),
        ({"base_url": "http://a:b"}, "base_url is not a URL"),
        ({"base_url": f"http://user:{KEY}@a/v1"}, "base_url must not hold a user or password"),
        ({"base_url": "http://a/v1#x"}, "base_url must not hold a fragment"),
        ({"model": " "}, "model must name a model"),
        ({"api_key": f"{KEY}\n"}, "api_key must be visible ASCII text without space around it"),
        ({"api_key": f"{KEY}é"}, "api_key must be visible ASCII text"),
        ({"api_key": ""}, "api_key must be visible ASCII text"),
        ({"headers": {"Authorization": "x"}}, "api_key and the header authorization exclude each other"),
        ({"headers": {"a b": "x"}}, "'a b' cannot be the name of a header"),
        ({"headers": {"Host": "x"}}, "the header Host is set by the provider itself"),
        ({"headers": {"x-a": f"{KEY}\r\nx: y"}}, "the header x-a must be visible ASCII text"),
        ({"structured_output": "grammar"}, "structured_output must be one of json_schema, tool, text"),
        ({"output_limit_name": "n"}, "output_limit_name must be one of max_tokens, max_completion_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens must be at least 1"),
        ({"input_price_usd": -1.0}, "a price must be a number that is not negative"),
        ({"output_price_usd": float("nan")}, "a price must be a number that is not negative"),
        ({"connect_timeout_seconds": 0}, "connect_timeout_seconds must be above zero"),
        ({"proxy_url": f"socks9://{KEY}@a"}, "proxy_url is not the URL of a proxy"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        OpenAIProvider(**({"base_url": "http://a", "model": "m", "api_key": KEY} | options))
    assert words in str(caught.value)
    assert KEY not in str(caught.value)
