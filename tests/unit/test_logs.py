"""Log lines of the command line."""

import pytest
import structlog

from loopwarden.logs import bind_run, configure_logs


def test_lines_go_to_the_error_stream_with_the_run_and_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("info")
    bind_run("run-7")
    structlog.get_logger().info("agent said", text="\x1b[2J\u202e", parts=["\x07"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "run_id=run-7" in err
    assert not set(err) & set("\x1b\x07\u202e")


def test_a_level_keeps_back_what_is_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert "quiet" not in capsys.readouterr().err


def test_an_exception_that_quotes_an_agent_is_shown_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A contract's mistake can hold a report."""
    configure_logs("error")
    structlog.get_logger().error("the contract failed", exc_info=ValueError("\x1b]0;pwned\x07 \u202e"))
    err = capsys.readouterr().err
    assert "ValueError" in err
    assert not set(err) & set("\x1b\x07\u202e")
