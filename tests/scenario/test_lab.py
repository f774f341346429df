"""`loopwarden.testing`: scripted agents, and runs of real workers without an event loop of the test's own."""

import asyncio
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwarden import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    ArgsInvalid,
    Capabilities,
    Check,
    Code,
    Host,
    Limits,
    ProviderStartError,
    ProviderUnfit,
    RunFailed,
    Script,
    ScriptRejected,
    run_sync,
)
from loopwarden.testing import FakeAgent, Lab, RepliesDiffer
from loopwarden_scripts import ralph
from support.agents import descendants
from support.command_line import COMPLETE, REPORT

ASK = Script.from_text("""
from loopwarden_engine import agent, log, phase

def main(args):
    answers = []
    for number, question in enumerate(args["questions"]):
        phase(f"Question {number}")
        answers.append(agent(question, schema=args.get("schema"), label=f"ask {number}"))
        log(f"answered {number}")
    return answers
""")
TOGETHER = Script.from_text("""
from loopwarden_engine import agent, parallel

def main(args):
    return parallel([lambda q=q: agent(q) for q in args["questions"]])
""")
ROUTED = Script.from_text("""
from loopwarden_engine import agent

def main(args):
    return [agent("write"), agent("judge", provider="judge")]
""")
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One launcher for the module."""
    with Lab() as lab:
        yield lab


def asked(*questions: str, **more: Any) -> dict[str, Any]:
    return {"questions": list(questions), **more}


# ---- which reply a call gets


def test_call_n_gets_reply_n_of_a_list_whatever_runs_in_parallel(lab: Lab) -> None:
    assert lab.run(TOGETHER, asked("a", "b", "c"), ["one", "two", "three"]).value == ["one", "two", "three"]


def test_the_longest_key_in_the_prompt_decides_and_the_empty_key_is_in_every_prompt(lab: Lab) -> None:
    table = {"": "else", "cat": "short", "black cat": "long"}
    assert lab.run(ASK, asked("a black cat", "a dog", "a cat"), table).value == ["long", "else", "short"]


def test_a_list_in_a_table_gives_one_reply_after_the_other(lab: Lab) -> None:
    run = lab.run(ASK, asked("cat 1", "dog 1", "cat 2"), {"cat": ["first", "second"], "dog": "woof"})
    assert run.value == ["first", "woof", "second"]


def test_a_function_says_the_reply_plain_or_async(lab: Lab) -> None:
    async def later(request: AgentRequest) -> str:
        await asyncio.sleep(0)
        return request.label

    assert lab.run(ASK, asked("a"), lambda request: request.prompt.upper()).value == ["A"]
    assert lab.run(ASK, asked("a"), later).value == ["ask 0"]


def test_a_reply_is_a_text_an_object_both_nothing_or_an_exception(lab: Lab) -> None:
    both = AgentReply(text="I counted", value={"n": 2})
    replies = [{"n": 1}, both, None, AgentFailed("it fell asleep"), {"n": "no number"}]
    run = lab.run(ASK, asked(*"abcde", schema=OBJECT), replies)
    assert run.value == [{"n": 1}, {"n": 2}, None, None, None]
    reasons = [agent.reason for agent in run.outcome.receipt.agents]
    assert reasons[2:4] == ["the test says that this agent fails", "it fell asleep"]
    assert "does not fit the schema" in reasons[4]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ProviderStartError("no key"), Code.AGENT_START), (KeyError("broken"), Code.AGENT_RESULT)],
)
def test_an_exception_of_the_provider_ends_the_run_as_it_does_outside_of_a_lab(
    lab: Lab, error: Exception, code: Code
) -> None:
    run = lab.run(ASK, asked("a"), [error])
    assert run.failure is not None
    assert run.failure.code is code
    with pytest.raises(RunFailed):
        _ = run.value


# ---- replies that differ from what is asked


@pytest.mark.parametrize(
    ("questions", "replies", "sentence"),
    [
        ("ab", ["x"], "call 2 ('ask 1') has no reply: the list ends before it, at 1; it asks 'b'"),
        ("a", ["x", "y"], "no call asked for reply 2"),
        ("a", ["x", "y", "z"], "no call asked for the replies 2, 3"),
        ("a", {"b": "x"}, "call 1 ('ask 0') has no reply: no key of the table stands in its prompt; it asks 'a'"),
        ("aa", {"a": ["x"]}, "call 2 ('ask 1') has no reply: the list for 'a' is used up (1 given); it asks 'a'"),
        ("a", {"a": "x", "b": ["y"]}, "no prompt asked for reply 1 for 'b'"),
        (["q" * 100], [], f"it asks '{'q' * 80}…'"),
    ],
)
def test_replies_that_are_not_those_asked_for_fail_the_test_in_words(
    lab: Lab, questions: str, replies: Any, sentence: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        lab.run(ASK, asked(*questions), replies)


def test_a_single_reply_of_a_table_may_be_asked_for_never(lab: Lab) -> None:
    assert lab.run(ASK, asked("a", "a"), {"a": "x", "b": "y"}).value == ["x", "x"]


def test_left_over_replies_do_not_hide_why_the_run_ended(lab: Lab) -> None:
    with pytest.raises(RepliesDiffer, match=r"^the run failed with SCRIPT_ERROR: .*; no call asked for reply 1$"):
        lab.run(ASK, {}, ["x"])
    with pytest.raises(RepliesDiffer, match=r"^the run failed with AGENT_CAP: .*; no call asked for reply 2$"):
        lab.run(ASK, asked("a", "b"), ["x", "y"], max_total_agents=1)


def test_a_call_without_a_reply_ends_the_run_at_once(lab: Lab) -> None:
    agent = FakeAgent(["x"])
    with pytest.raises(RepliesDiffer):
        lab.run(ASK, asked(*"abcd"), agent)
    assert [request.prompt for request in agent.requests] == ["a", "b"]


@pytest.mark.parametrize("replies", ["a text", 7, None])
def test_what_cannot_be_replies_is_a_type_error(lab: Lab, replies: Any) -> None:
    with pytest.raises(TypeError, match="replies are a list, a table or a function"):
        lab.run(ASK, asked("a"), replies)


@pytest.mark.parametrize(
    ("odd", "where"),
    [
        (["x", 7], "reply 2: int"),
        ([AgentFailed], "reply 1: type"),
        ({"a": 7}, "the reply for 'a': int"),
        ({"{}": [7]}, "reply 1 for '{}': int"),
        ({"a": b"x"}, "reply 1 for 'a': int"),
    ],
)
def test_what_cannot_be_a_reply_is_a_type_error_before_any_run(odd: Any, where: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{where} is no reply; give a text, a dict, None or an exception")):
        FakeAgent(odd)


def test_a_key_of_a_table_is_a_text() -> None:
    odd: Any = {1: "x"}
    with pytest.raises(TypeError, match="keys of a table are words of prompts, not int"):
        FakeAgent(odd)


def test_a_function_that_gives_no_reply_ends_the_run_with_its_type(lab: Lab) -> None:
    odd: Any = lambda request: 7  # noqa: E731 -- as a test writes it
    run = lab.run(ASK, asked("a"), odd)
    assert run.failure is not None
    assert "int is no reply; give a text, a dict, None or an exception" in run.failure.message
    assert isinstance(run.error, TypeError)


def test_what_a_function_of_the_test_raises_is_the_cause_of_what_the_lab_raises(lab: Lab) -> None:
    run = lab.run(ASK, asked("a"), lambda request: str(1 / 0))
    with pytest.raises(RunFailed) as failed:
        _ = run.value
    shown = "".join(traceback.format_exception(failed.value))
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert "lambda request: str(1 / 0)" in shown
    with pytest.raises(RepliesDiffer, match=r"^the run failed with AGENT_RESULT: .*no call asked for reply 2$") as own:
        lab.run(ASK, asked("a", "b"), [KeyError("broken"), "y"])
    assert isinstance(own.value.__cause__, KeyError)


def test_an_error_of_an_agent_is_not_the_cause_of_another_ending(lab: Lab) -> None:
    assert lab.run(ASK, asked("a"), [AgentFailed("asleep")]).error is None


def test_a_source_text_is_no_script(lab: Lab) -> None:
    odd: Any = ASK.source
    for use in (lambda: lab.run(odd, {}, []), lambda: lab.vet(odd)):
        with pytest.raises(TypeError, match=r"^a script is needed: Script\.from_text\(…\)"):
            use()


# ---- what a run shows


def test_a_run_shows_what_was_asked_and_what_observers_saw(lab: Lab) -> None:
    run = lab.run(ASK, asked("a", "b", schema=OBJECT), {"": {"n": 1}})
    assert (run.prompts, run.labels) == (["a", "b"], ["ask 0", "ask 1"])
    assert [request.schema for request in run.requests] == [OBJECT, OBJECT]
    assert (run.phases, run.logs) == (["Question 0", "Question 1"], ["answered 0", "answered 1"])
    assert [run.events[0].kind, run.events[-1].kind] == ["runStarted", "runEnded"]
    assert (run.failure, run.outcome.agents_started) == (None, 2)


def test_limits_checks_and_providers_are_those_of_a_host(lab: Lab, tmp_path: Path) -> None:
    capped = lab.run(ASK, asked("a", "b"), ["x"], max_total_agents=1)
    assert capped.failure is not None
    assert capped.failure.code is Code.AGENT_CAP
    done = lab.run(ralph.script, {"objective": "x"}, [COMPLETE], workspace=tmp_path, checks=[Check.parse("test -e x")])
    assert done.outcome.verified is False
    with Lab(provider_names=("default", "judge")) as two:
        run = two.run(ROUTED, {}, ["text", "good"])
        assert run.value == ["text", "good"]
        assert [agent.provider for agent in run.outcome.receipt.agents] == ["default", "judge"]
        assert two.run(ASK, asked("a"), ["x"], provider="judge").outcome.receipt.agents[0].provider == "judge"


def test_ralph_runs_and_goes_on_from_a_receipt(lab: Lab) -> None:
    args = ralph.Args(objective="Write it.", max_rounds=1)
    first = lab.run(ralph.script, args, [REPORT])
    assert isinstance(first.value, ralph.Reported)
    assert first.value.status == "budget-limited"
    again = lab.run(ralph.script, args, [COMPLETE], continues=first.outcome.receipt)
    assert '"nextSteps":["go on"]' in again.prompts[0]


def test_a_script_is_vetted_without_being_run(lab: Lab) -> None:
    vetted = lab.vet(Script.from_text('"""Says nothing."""\n' + ROUTED.source))
    assert vetted.summary == "Says nothing."
    assert [call.has_schema for call in vetted.findings.calls] == [False, False]
    with pytest.raises(ScriptRejected, match="print"):
        lab.vet(Script.from_text("def main(args):\n    print(1)\n"))


def test_what_is_refused_before_a_run_is_raised(lab: Lab) -> None:
    with pytest.raises(ScriptRejected, match="print"):
        lab.run(Script.from_text("def main(args):\n    print(1)\n"))
    with pytest.raises(ArgsInvalid):
        lab.run(ralph.script, {"objective": ""})
    with pytest.raises(ProviderUnfit):
        lab.run(ralph.script, {"objective": "x"}, FakeAgent([COMPLETE], capabilities=Capabilities()))


# ---- the lab itself


def test_a_run_that_waits_for_ever_ends_by_the_deadline_of_the_lab() -> None:
    async def never(request: AgentRequest) -> str:
        await asyncio.Event().wait()
        return ""

    with Lab(limits=Limits(run_deadline_seconds=0.2, agent_grace_seconds=0.1)) as swift:
        run = swift.run(ASK, asked("a"), never)
    assert run.failure is not None
    assert run.failure.code is Code.DEADLINE


def test_a_lab_that_was_left_has_no_process() -> None:
    before = descendants()
    with Lab() as lab:
        lab.run(ASK, asked("a"), ["x"])
        assert descendants() != before
    assert descendants() == before


def test_a_lab_refuses_to_be_used_where_an_event_loop_runs(lab: Lab) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="give a FakeAgent to a Host there"):
            lab.run(ASK, asked("a"), ["x"])
        with pytest.raises(RuntimeError, match="give a FakeAgent to a Host there"), Lab():
            pass

    asyncio.run(main())


def test_a_lab_has_to_be_entered_and_is_over_once_it_was_left() -> None:
    lab = Lab()
    with pytest.raises(RuntimeError, match="enter the Lab first"):
        lab.run(ASK, asked("a"), ["x"])
    with lab:
        pass
    with pytest.raises(RuntimeError, match="enter the Lab first"):
        lab.vet(ASK)


def test_a_fake_agent_serves_a_host_and_run_sync_too() -> None:
    async def main() -> list[str]:
        agent = FakeAgent(["x", "y"])
        async with Host(providers={"default": agent}) as host:
            outcome = await host.run(ASK, asked("a", "b"))
        agent.check()
        return outcome.raise_for_failure().value  # type: ignore[return-value]

    assert asyncio.run(main()) == ["x", "y"]
    agent = FakeAgent(["x", "y"])
    assert run_sync(ASK, asked("a"), providers={"default": agent}).value == ["x"]
    with pytest.raises(RepliesDiffer, match="no call asked for reply 2"):
        agent.check()
