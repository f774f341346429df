"""What counts as a secret of a program, and how it is taken out of texts."""

import os
from pathlib import Path

import pytest

from loopwarden.providers.openai.endpoint import open_endpoint
from loopwarden.providers.redaction import Secrets

KEY = "sk-4711-abcdefgh-ijkl"


@pytest.mark.parametrize(
    ("name", "value", "text", "shown"),
    [
        ("A_KEY", KEY, f"bad {KEY}, {KEY}", "bad [secret], [secret]"),
        ("extra_headers", f"Bearer {KEY}", f"not {KEY}", "not [secret]"),
        ("HTTPS_PROXY", "http://me:hunter22@proxy:1", "407 for me:hunter22", "407 for me:[secret]"),
        ("A_KEY", KEY, f"cut: {KEY[:-3]}…", "cut: [secret]…"),
        ("A_KEY", KEY, "…", "…"),
        ("A_KEY", "short", "a short text", "a short text"),
        (
            "BASE_URL",
            "http://127.0.0.1:8080/v1",
            "http://127.0.0.1:8080/v1 is down",
            "http://127.0.0.1:8080/v1 is down",
        ),
    ],
)
def test_what_a_variable_holds_is_taken_out(name: str, value: str, text: str, shown: str) -> None:
    secrets = Secrets.given({name: value})
    assert secrets.without(text) == shown
    assert value not in repr(secrets)


def test_tokens_of_a_file_are_taken_out_and_a_file_that_is_not_there_holds_none(tmp_path: Path) -> None:
    (tmp_path / "login").write_text(f'{{"access": "{KEY}", "kind": "oauth"}}')
    secrets = Secrets.given({}, [os.fspath(tmp_path / "login"), os.fspath(tmp_path / "nothing")])
    assert secrets.without(f"oauth: {KEY} expired") == "oauth: [secret] expired"


def test_a_secret_that_holds_another_goes_whole() -> None:
    assert Secrets.given({"A_KEY": KEY[:12], "B_KEY": KEY}).without(f"bad {KEY}") == "bad [secret]"


def test_the_password_of_a_proxy_is_a_secret_of_the_endpoint() -> None:
    endpoint = open_endpoint(
        base_url="http://a", api_key=None, headers={}, proxy_url="http://me:hunter22@proxy:1", connect_timeout_seconds=1
    )
    assert endpoint.evidence("407 hunter22") == "407 [secret]"
    assert "hunter22" not in repr(endpoint)
