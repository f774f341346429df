"""What the driver makes of the end of an agent program, with a toy program."""

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from loopwarden.failure_class import FailureClass
from loopwarden.provider import AgentFailed, AgentReply
from loopwarden.providers import home
from loopwarden.providers.supervision.removal import remove_tree
from loopwarden.usage import Usage
from support.agents import carrying, request, until
from support.toy_agent import END, SCHEMA, failure_of, printing, reply_of, toy


def test_lines_that_are_no_records_are_counted_in_the_notes(tmp_path: Path) -> None:
    script = f"printf 'warning\\r\\n\\n[1]\\n'; printf '\\357\\273\\277%s' '{END}'"
    assert reply_of(tmp_path, script) == AgentReply(
        text="done",
        notes=("a note", "its output held 1 line of plain text", "its output held 1 line of JSON that is no object"),
    )


def test_the_dialect_is_told_how_the_program_ended(tmp_path: Path) -> None:
    provider, dialect = toy(tmp_path, 'echo plain; echo \'{"type": "odd"}\'; echo words >&2; exit 7')
    with pytest.raises(AgentFailed) as caught:
        asyncio.run(provider.reply(request(tmp_path)))
    assert caught.value.reason == "toy gave no answer"
    assert caught.value.evidence == "words"
    [end] = dialect.readings[0].ends
    assert (end.exit, end.signal, end.is_cancelled) == (7, None, False)
    assert (end.errors, end.plain_output) == ("words\n", "plain\n")


def test_a_trouble_is_passed_on_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    trouble = {"type": "trouble", "class": "rateLimited", "line": "429\n" + "x" * 1000, "at": 1900000000}
    failed = failure_of(tmp_path, printing({"type": "usage", "tokens": 9}, trouble) + "\nexit 1")
    assert failed.reason == "toy is in trouble"
    assert failed.failure_class is FailureClass.RATE_LIMITED
    assert failed.evidence == "429 " + "x" * 495 + "…"
    assert failed.resets_at == 1900000000
    assert failed.usage == Usage(output_tokens=9)
    assert failed.notes == ("a note of the trouble",)


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("words", {"n": 1}, (("a note",), {"n": 1})),
        ('so: {"n": 2}', None, (("the value stood inside other text", "a note"), {"n": 2})),
    ],
)
def test_a_value_comes_from_its_place_or_from_the_text(
    tmp_path: Path, text: str, value: dict[str, Any] | None, found: object
) -> None:
    script = printing({"type": "usage", "tokens": 3}, {"type": "end", "text": text, "value": value})
    reply = reply_of(tmp_path, script, schema=SCHEMA)
    assert (reply.notes, reply.value) == found
    assert (reply.text, reply.usage) == (text, Usage(output_tokens=3))


@pytest.mark.parametrize(
    ("end", "schema", "reason", "evidence"),
    [
        ({"value": {"n": "one"}}, SCHEMA, "gave a value that does not fit the schema: ", '{"n":"one"}'),
        ({"value": {"n": 2**60}}, SCHEMA, "gave a value that is not plain JSON: value.n: ", None),
        ({"text": "no idea"}, SCHEMA, "gave no usable value: the output holds no JSON object", "no idea"),
        ({"text": '{"n": 1} {"n": 2}'}, SCHEMA, "gave no usable value: the output holds 2 different", '{"n": 1} {"n"'),
        ({"text": " \n"}, None, "ended well and said nothing", None),
    ],
)  # fmt: skip
def test_an_answer_without_a_fitting_payload_is_no_answer(
    tmp_path: Path, end: dict[str, Any], schema: dict[str, Any] | None, reason: str, evidence: str | None
) -> None:
    failed = failure_of(tmp_path, printing({"type": "end", **end}), schema=schema)
    assert failed.failure_class is FailureClass.INVALID_OUTPUT
    assert failed.reason.startswith(f"toy {reason}")
    assert (failed.evidence or "").startswith(evidence or "")
    assert (failed.evidence is None) == (evidence is None)


def test_how_many_values_were_looked_at_is_noted(tmp_path: Path) -> None:
    failed = failure_of(tmp_path, printing({"type": "end", "text": '{"n": 1} {"n": 2} {"m": 3}'}), schema=SCHEMA)
    assert failed.notes == ("JSON objects looked at in its answer: 3", "a note")


@pytest.mark.parametrize(
    ("ending", "how"), [("exit 3", "ended with exit 3"), ("kill -SEGV $$", "was ended by signal SIGSEGV")]
)
def test_an_answer_does_not_count_when_the_program_ends_badly(tmp_path: Path, ending: str, how: str) -> None:
    failed = failure_of(tmp_path, f"ulimit -c 0; echo '{END}'; echo oops >&2; {ending}")
    assert failed.failure_class is FailureClass.CRASHED
    assert (failed.reason, failed.evidence) == (f"toy gave an answer, and then {how}", "oops")


def test_a_reading_that_raises_fails_the_attempt_and_ends_the_program(tmp_path: Path, mark: str) -> None:
    script = printing({"type": "raise"}) + "\nsleep 600"
    failed = failure_of(tmp_path, script, options={"env": {"TEST_MARK": mark}})
    assert failed.failure_class is FailureClass.UNKNOWN
    assert failed.reason == (
        "toy printed something that Loopwarden failed to read; please report it: KeyError: 'broken reading'"
    )
    assert carrying("TEST_MARK", mark) == set()


# ---- cancelled


def cancelled(folder: Path, *records: dict[str, Any], before: str = "", then: str = "sleep 600") -> BaseException:
    async def scenario() -> None:
        provider, _ = toy(folder, f"{before}\n{printing(*records)}\ntouch up; {then}")
        task = asyncio.create_task(provider.reply(request(folder)))
        await until((folder / "up").exists)
        task.cancel()
        await task

    with pytest.raises((AgentFailed, asyncio.CancelledError)) as caught:
        asyncio.run(scenario())
    return caught.value


@pytest.mark.parametrize("name", ["rateLimited", "overloaded", "auth"])
def test_a_cancelled_agent_that_was_in_trouble_says_so(tmp_path: Path, name: str) -> None:
    ended = cancelled(tmp_path, {"type": "trouble", "class": name, "line": "429 again"})
    assert isinstance(ended, AgentFailed)
    assert (ended.failure_class, ended.evidence) == (FailureClass(name), "429 again")


def test_a_cancelled_agent_says_what_it_used(tmp_path: Path) -> None:
    ended = cancelled(tmp_path, {"type": "usage", "tokens": 5})
    assert isinstance(ended, AgentFailed)
    assert (ended.failure_class, ended.usage) == (FailureClass.CANCELLED, Usage(output_tokens=5))
    assert ended.reason == "toy was ended by the host"


@pytest.mark.parametrize("name", ["crashed", "unknown", "cancelled"])
def test_a_cancelled_agent_that_has_nothing_to_tell_is_cancelled(tmp_path: Path, name: str) -> None:
    assert isinstance(cancelled(tmp_path, {"type": "trouble", "class": name}), asyncio.CancelledError)


def test_what_a_cancelled_agent_says_in_its_grace_is_heard(tmp_path: Path) -> None:
    usage = tmp_path / "usage.json"
    usage.write_text('{"type": "usage", "tokens": 8}\n')
    ended = cancelled(tmp_path, before=f"trap 'cat {usage}; exit 0' TERM", then="sleep 600 & wait")
    assert isinstance(ended, AgentFailed)
    assert ended.usage == Usage(output_tokens=8)


@pytest.mark.parametrize("uses", [True, False])
def test_a_cancellation_while_the_home_is_removed_keeps_the_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: bool
) -> None:
    begins, goes_on = threading.Event(), threading.Event()

    def remove_slowly(folder: Path) -> None:
        begins.set()
        assert goes_on.wait(10)
        remove_tree(folder)

    async def scenario() -> None:
        provider, dialect = toy(tmp_path, printing({"type": "usage", "tokens": 8}) if uses else "exit 1")
        task = asyncio.create_task(provider.reply(request(tmp_path)))
        await until(begins.is_set)
        task.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        try:
            await task
        finally:
            assert not dialect.asks[0].home.exists()

    monkeypatch.setattr(home.AgentHome, "folders", ())  # as if the supervisor was killed before it could remove them
    monkeypatch.setattr(home, "remove_tree", remove_slowly)
    with pytest.raises(AgentFailed if uses else asyncio.CancelledError) as caught:
        asyncio.run(scenario())
    if isinstance(caught.value, AgentFailed):
        assert (caught.value.failure_class, caught.value.usage) == (FailureClass.CANCELLED, Usage(output_tokens=8))


def test_a_signal_from_elsewhere_is_no_cancellation_by_the_host(tmp_path: Path) -> None:
    provider, dialect = toy(tmp_path, "kill -TERM $$")
    with pytest.raises(AgentFailed):
        asyncio.run(provider.reply(request(tmp_path)))
    [end] = dialect.readings[0].ends
    assert (end.signal, end.is_cancelled) == (signal.SIGTERM, False)
