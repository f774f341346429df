"""Promise 3: hostile scripts, end to end. What was obtained is looked at; an exception alone proves nothing."""

import asyncio
import copy
import re
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from loopwarden import AgentReply, AgentRequest, Code, Failure, Host, Limits, Outcome, Receipt, Script, StartRefused
from support.corpus import cases, same_json
from support.replies import ScriptedReplies

HERE: Final = Path(__file__).parent
CASES: Final = cases(HERE / "language.jsonl")
ROWS: Final[list[dict[str, Any]]] = [case.values[0] for case in CASES]
# The corpus only ever grows: raise this with every entry that is added.
ENTRIES: Final = 1207
LIMITS: Final = Limits(cpu_seconds_per_turn=0.6, cpu_seconds_per_run=2.0, memory_bytes=256 * 1024 * 1024)
CANCEL_AFTER_SECONDS: Final = 0.3

KEYS: Final = {
    "id", "family", "known_from", "goal", "source", "args", "agent_replies", "prompts", "expect", "value", "must_not",
    "must_stop", "limit_kind", "compare_runs", "may_crash", "pad", "note",
}  # fmt: skip
# How a hostile run may end, besides with a value: its own error, or a misuse of a hook.
ENDS_OF_AN_ATTACK: Final = {
    Code.SCRIPT_ERROR, Code.RESULT_INVALID, Code.INVALID_ARGUMENT, Code.UNSUPPORTED_OPTION, Code.UNSUPPORTED_SCHEMA,
    Code.AGENT_START, Code.ITEM_CAP,
}  # fmt: skip
# Paths, frames and addresses of ours. The name of the hook module alone is no secret.
OURS: Final = re.compile(r"Traceback|File \"|\.py\b|/lib/|site-packages|loopwarden_engine[./]|loopwarden[./]| at 0x")


class Stage:
    """A host for the whole module. `provider` answers as the case says and writes down every prompt that it got."""

    def __init__(self) -> None:
        self.host = Host(providers={"default": self.provider}, limits=LIMITS)
        self.prompts: list[str] = []
        self.replies: ScriptedReplies | None = None

    async def provider(self, request: AgentRequest) -> AgentReply:
        """Answer one call; without replies, never."""
        self.prompts.append(request.prompt)
        if self.replies is None:
            await asyncio.Event().wait()
            raise AssertionError("an agent that never answers did")
        return await self.replies(request)


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A stage whose host is open."""
    stage = Stage()
    async with stage.host:
        yield stage


@pytest.fixture(scope="module")
def stage(runner: asyncio.Runner) -> Iterator[Stage]:
    """One host for all cases: a launcher costs 80 ms, and every run has a worker of its own anyway."""
    context = staged()
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_script_obtains_nothing(case: dict[str, Any], stage: Stage, runner: asyncio.Runner) -> None:
    """The script obtains nothing, and the run ends typed and in time; an honest neighbour of the attack works."""
    values: list[object] = []
    for _ in range(case.get("compare_runs", 1)):
        outcome = runner.run(asyncio.wait_for(play(case, stage), 30))
        judge(case, outcome, stage.prompts)
        if isinstance(outcome, Outcome):
            values.append(outcome.value)
    assert all(same_json(value, values[0]) for value in values)


def judge(case: dict[str, Any], outcome: "Outcome[Any] | StartRefused", prompts: list[str]) -> None:
    """Compare one ending, and the prompts that the provider got, with the case."""
    expect = case["expect"]
    if isinstance(outcome, StartRefused):
        assert expect != "control", f"an honest script was refused: {outcome.details}"
        assert outcome.code is Code.SCRIPT_REJECTED
        assert all(violation["hint"] and violation["line"] >= 1 for violation in outcome.details.get("violations", ()))
        return
    assert expect != "rejected", "the script ran"
    if expect != "limit":
        assert prompts == case.get("prompts", []), "other calls were made than the case says"
    assert outcome.agents_started == len(prompts), "the host charged other calls than the provider got"
    if outcome.failure is not None:
        judge_failure(case, outcome.failure)
    elif expect == "control":
        assert same_json(outcome.value, case["value"])
    elif "must_not" in case:
        # The expression is the corpus's own, over the value that the run returned.
        assert not eval(case["must_not"], {"v": outcome.value}), outcome.value
    else:
        assert expect != "limit", "no limit ended the run"


def judge_failure(case: dict[str, Any], failure: Failure) -> None:
    """A failure is typed, and shows nothing of ours. A worker dies only where CPython itself cannot be kept alive."""
    assert case["expect"] != "control", failure
    if failure.code is Code.WORKER_LOST:
        assert case.get("may_crash", False), failure
    elif case["expect"] == "harmless":
        assert failure.code in ENDS_OF_AN_ATTACK, failure
    assert failure.code is not Code.PROTOCOL
    assert not OURS.search(f"{failure.message} {failure.details}"), failure


async def play(case: dict[str, Any], stage: Stage) -> "Outcome[Any] | StartRefused":
    """Run the case. What the caller gave stays as it was, and a cancelled run says that it was cancelled."""
    source = case["source"]
    if "pad" in case:
        source = source.replace(case["pad"]["token"], case["pad"]["char"] * case["pad"]["count"])
    args, replies = case.get("args", {}), case.get("agent_replies", {})
    kept = copy.deepcopy((args, replies))
    is_cancelled = case.get("limit_kind") == "cancel"
    stage.prompts = []
    stage.replies = None if is_cancelled else ScriptedReplies(replies)
    try:
        run = await stage.host.start(Script.from_text(source), args)
    except StartRefused as refusal:
        return refusal
    if is_cancelled:
        await asyncio.sleep(CANCEL_AFTER_SECONDS)
        run.cancel("user")
    outcome = await run.wait()
    assert (outcome.stop_reason == "cancelled") == is_cancelled
    assert same_json([args, replies], list(kept))
    return outcome


def test_the_corpus_is_described_and_only_grows() -> None:
    """Every entry has a family that is described, and every family an honest neighbour that must work."""
    families = tomllib.loads((HERE / "families" / "language.toml").read_text(encoding="utf-8"))
    assert len(ROWS) >= ENTRIES
    assert [name for name, count in Counter(row["id"] for row in ROWS).items() if count > 1] == []
    for row in ROWS:
        assert KEYS.issuperset(row), row["id"]
        assert row["id"].startswith(row["family"] + "-"), row["id"]
        assert row["known_from"], row["id"]
        assert row["goal"], row["id"]
        assert ("value" in row) == (row["expect"] == "control"), row["id"]
    assert {row["family"] for row in ROWS} == set(families)
    assert all(set(family) == {"title", "tries", "known_from"} for family in families.values())
    without_attack = {row["family"] for row in ROWS} - {row["family"] for row in ROWS if row["expect"] != "control"}
    without_control = {row["family"] for row in ROWS} - {row["family"] for row in ROWS if row["expect"] == "control"}
    assert (without_attack, without_control) == (set(), set())


def ended(value: object, failure: Failure | None) -> Outcome[Any]:
    """The end of a run that charged nothing."""

    def no_receipt() -> Receipt:
        raise NotImplementedError

    return Outcome(
        run_id="run",
        stop_reason="completed" if failure is None else "error",
        value=value,
        failure=failure,
        agents_started=0,
        verified=None,
        conclusion=None,
        receipt_source=no_receipt,
    )


def test_a_judge_that_saw_an_escape_says_so() -> None:
    """The judge above can fail: for what a run obtained, refused, charged or showed."""
    escaped = ended("PWNED", None)
    failed = ended(None, Failure(code=Code.SCRIPT_ERROR, message="ValueError: <f at 0x7f00>", line=1))
    attack = {"expect": "harmless", "must_not": "v == 'PWNED'"}
    seen: list[tuple[dict[str, Any], Outcome[Any] | StartRefused, list[str]]] = [
        (attack, escaped, []),
        (attack, failed, []),
        ({**attack, "prompts": ["canary"]}, escaped, []),
        ({"expect": "rejected"}, escaped, []),
        ({"expect": "control", "value": "PWNED "}, escaped, []),
        ({"expect": "control", "value": None}, failed, []),
        ({"expect": "limit", "must_not": "False"}, escaped, ["a call that was not charged"]),
    ]
    for case, outcome, prompts in seen:
        with pytest.raises(AssertionError):
            judge(case, outcome, prompts)
