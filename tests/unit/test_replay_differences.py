"""A script that does not do what its journal holds: the difference is said in a sentence, and nothing goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from loopwarden import Limits
from loopwarden.agent import Agent
from loopwarden.call_options import decode_call
from loopwarden.failures import Code
from loopwarden.journal.entries import Asked, Ended, ItemFailed, Logged, PhaseNamed
from loopwarden.journal.fold import fold
from loopwarden.replaying import Replay
from loopwarden_engine.messages import Call
from support.broker_lab import EPOCH, VirtualClock
from support.journal_lab import Pen, play
from support.replay_lab import Fate, first_host, lab_of


def test_a_recorded_call_that_is_refused_now_is_a_difference_and_a_new_one_ends_the_run() -> None:
    async def case() -> None:
        before = await first_host(Fate({("do it", 1): "silence"}), {})
        before.pen.claim()
        lab = lab_of(before.pen, Fate(), {}, before.limits, VirtualClock())
        lab.call("do it", provider="gone")
        assert lab.divergences == [
            "call 1 was accepted, and is refused now: the provider 'gone' does not exist; configured: main, spare"
        ]
        assert lab.failures == []
        again = lab_of(before.pen, Fate(), {}, before.limits, VirtualClock())
        again.call()
        again.call("new", provider="gone")
        assert (again.divergences, [fault.code for fault in again.failures]) == ([], [Code.AGENT_START])
        again.broker.abandon()

    play(case)


def recorded_replay(*entries: Any) -> tuple[Replay, list[str], list[str]]:
    """A replay of a journal that holds two calls and two messages, and what it says."""
    said: list[str] = []
    heard: list[str] = []
    pen = Pen().begin(Limits())
    pen.write(*entries)
    replay = Replay(
        state=fold("lab", pen.journal.chained),
        restore=lambda agent, call: heard.append(f"restored {agent.seq}"),
        deliver=lambda agent, ended: heard.append(f"delivered {agent.seq}"),
        live=lambda: heard.append("live"),
        diverged=said.append,
    )
    return replay, said, heard


def call_of(seq: int, key: str | None = None, prompt: str = "do it") -> Any:
    written = Call(id=seq, key=key or f"0.{seq}", prompt=prompt, options={}, line=1)
    return Agent(call=decode_call(written, None), provider_name="main", provider=Fate(), line=1, seq=seq)


def asked_of(seq: int) -> Asked:
    call = call_of(seq)
    return Asked(
        at=EPOCH, seq=seq, key=f"0.{seq}", digest=call.known_digest(), attempt=1, ask="first", provider="main",
        label="do it",
    )  # fmt: skip


def ended_of(seq: int) -> Ended:
    return Ended(at=EPOCH, seq=seq, attempt=1, outcome="completed", value=f"value {seq}")


def test_recorded_ends_are_delivered_in_recorded_order_whenever_their_calls_come() -> None:
    replay, said, heard = recorded_replay(asked_of(1), asked_of(2), ended_of(2), ended_of(1))
    assert replay.accepted(call_of(1))
    assert heard == ["restored 1"]
    assert replay.accepted(call_of(2))
    assert heard == ["restored 1", "restored 2", "delivered 2", "delivered 1"]
    replay.idle()
    assert (heard[-1], said, replay.is_over) == ("live", [], True)
    assert not replay.accepted(call_of(3))


def test_a_call_that_is_not_recorded_is_new_and_does_not_end_the_replay() -> None:
    replay, said, heard = recorded_replay(asked_of(1))
    assert not replay.accepted(call_of(2))
    assert replay.accepted(call_of(1))
    replay.idle()
    assert (heard, said) == (["restored 1", "live"], [])


def test_the_end_of_the_script_after_all_that_is_recorded_is_an_end() -> None:
    replay, said, _ = recorded_replay(asked_of(1), ended_of(1))
    replay.accepted(call_of(1))
    assert replay.may_end()
    assert said == []


PHASE = PhaseNamed(at=EPOCH, title="first")
LOG = Logged(at=EPOCH, message="hello")
ITEM = ItemFailed(at=EPOCH, combinator="1", index=0, line=3, message="boom")


@pytest.mark.parametrize(
    ("entries", "script", "sentence"),
    [
        ([asked_of(1)], lambda r: r.accepted(call_of(1, key="0.7")), "call 1 is '0.1' in the journal and '0.7' now"),
        (
            [asked_of(1)],
            lambda r: r.accepted(call_of(1, prompt="do that")),
            "call 1 ('do it') has another prompt or other options than in the journal",
        ),
        ([asked_of(1)], lambda r: r.idle(), "call 1 is recorded, and the script does not make it"),
        ([asked_of(1)], lambda r: r.may_end(), "call 1 is recorded, and the script does not make it"),
        (
            [asked_of(1), asked_of(2), ended_of(2)],
            lambda r: (r.accepted(call_of(1)), r.idle()),
            "the end of call 2 is recorded, and the script does not wait for it",
        ),
        (
            [asked_of(1), ended_of(1)],
            lambda r: r.may_end(),
            "the script ends, and the end of call 1 is recorded",
        ),
        (
            [PHASE, LOG],
            lambda r: r.narrated(LOG),
            "the script tells its observers ('log', 'hello'), and ('phase', 'first') is recorded",
        ),
        (
            [ITEM],
            lambda r: r.narrated(ITEM.model_copy(update={"line": 4})),
            (
                "the script tells its observers ('itemFailed', '1', 0, 4, 'boom'), and "
                "('itemFailed', '1', 0, 3, 'boom') is recorded"
            ),
        ),
        (
            [PHASE],
            lambda r: r.idle(),
            "('phase', 'first') is recorded as told to observers, and the script does not tell it",
        ),
        (
            [PHASE],
            lambda r: r.may_end(),
            "('phase', 'first') is recorded as told to observers, and the script does not tell it",
        ),
    ],
)  # fmt: skip
def test_a_difference_is_said_in_a_sentence_once_and_nothing_goes_on(
    entries: list[Any], script: Callable[[Replay], Any], sentence: str
) -> None:
    replay, said, heard = recorded_replay(*entries)
    script(replay)
    assert said == [sentence]
    assert "live" not in heard
    replay.idle()
    assert not replay.may_end() or replay.is_over
    assert said == [sentence]
    assert "live" not in heard


def test_the_time_of_narration_is_no_difference() -> None:
    replay, said, heard = recorded_replay(PHASE, LOG, ITEM)
    for told_now in (PHASE, LOG, ITEM):
        assert replay.narrated(told_now.model_copy(update={"at": EPOCH + 999}))
    assert not replay.narrated(LOG)
    replay.idle()
    assert (said, heard) == ([], ["live"])
