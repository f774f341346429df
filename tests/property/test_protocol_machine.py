"""Promise 4: the protocol machine passes a legal conversation in any order; everything else is a breach."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_engine import protocol
from loopwarden_engine.framing import FrameReader, frame
from loopwarden_engine.message_decoding import decode_from_worker
from loopwarden_engine.messages import (
    Call,
    Failed,
    Fatal,
    FromWorker,
    Idle,
    ItemFailed,
    Log,
    Phase,
    Ready,
    Rejected,
    Result,
    Start,
    encode_from_worker,
)
from loopwarden_engine.protocol import HostProtocol, ProtocolBreach, State
from loopwarden_engine.violation import Violation

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MESSAGES: st.SearchStrategy[FromWorker] = st.one_of(
    st.builds(Ready, TEXT, st.sampled_from([None, {}, {"hooks": {}}])),
    st.just(Rejected((Violation(line=1, column=0, rule="r", message="m", hint="h"),))),
    st.builds(Call, st.integers(0, 6), TEXT, st.integers(0, 9), TEXT, st.just({})),
    st.builds(Phase, TEXT),
    st.builds(Log, TEXT),
    st.builds(ItemFailed, TEXT, st.integers(0, 3), st.integers(0, 3), TEXT),
    st.builds(Idle, st.integers(0, 4)),
    st.just(Fatal("ITEM_CAP", "too many", 3)),
    st.just(Result(None)),
    st.just(Failed("SCRIPT_ERROR", "bad", (1, 2))),
)
START = Start(source="", args={}, max_items_per_call=1, max_narration=3, max_frame_bytes=1000)


class Model:
    """What the protocol allows, written a second time and more plainly."""

    def __init__(self, *, vets: bool) -> None:
        self.vets = vets
        self.stage = "compiling"
        self.calls = 0
        self.keys: set[str] = set()
        self.narration = 0
        self.consumed = 0
        self.sent = 0
        self.waits = False

    def allows(self, message: FromWorker) -> bool:
        """True when the message may come now; takes it in."""
        if self.stage == "compiling":
            self.stage = "compiled" if isinstance(message, Ready) else "ended"
            if isinstance(message, Ready):
                return (message.findings is not None) is self.vets
            return isinstance(message, Rejected)
        if self.stage != "running" or isinstance(message, Ready | Rejected):
            return False
        if self.waits:
            return False
        if isinstance(message, Call):
            fine = message.id == self.calls + 1 and bool(message.key) and message.key not in self.keys
            self.calls += 1
            self.keys.add(message.key)
            return fine
        if isinstance(message, Idle):
            fine = self.consumed <= message.consumed <= self.sent
            self.consumed = message.consumed
            self.waits = self.consumed == self.sent
            return fine
        if isinstance(message, Phase | Log | ItemFailed):
            self.narration += 1
            return self.narration <= START.max_narration
        self.stage = "ended"
        return True


@given(messages=st.lists(MESSAGES, max_size=12), answers=st.lists(st.booleans(), max_size=12), vets=st.booleans())
def test_the_machine_allows_exactly_what_the_rules_allow(
    messages: list[FromWorker], answers: list[bool], *, vets: bool
) -> None:
    """Machine and model agree on every prefix; after a breach nothing is read any more."""
    machine, model = HostProtocol(max_frame_bytes=100_000, max_narration=START.max_narration), Model(vets=vets)
    machine.send_start(replace(START, vet=vets))
    answer: Iterator[bool] = iter(answers)
    for message in messages:
        if model.stage == "ended":
            machine.receive(frame(encode_from_worker(message)))
            assert machine.next_message() is None
            return
        machine.receive(frame(encode_from_worker(message)))
        try:
            seen = machine.next_message()
        except ProtocolBreach:
            assert not model.allows(message)
            assert machine.state is State.BROKEN
            return
        assert seen == message
        assert model.allows(message)
        if model.stage == "compiled":
            machine.send_go()
            model.stage = "running"
        if isinstance(message, Call) and next(answer, False):
            machine.send_reply(message.id, None)
            model.sent += 1
            model.waits = False


def heard(message: FromWorker, state: State) -> tuple[FromWorker | str | None, State, int]:
    """What a machine in this state makes of a message, its state then, and in how many steps."""
    machine = HostProtocol(max_frame_bytes=100_000, max_narration=3)
    machine.state = state
    machine.receive(frame(encode_from_worker(message)))
    steps = 1
    try:
        seen = machine.next_message()
        while machine.is_decoding:
            assert seen is None
            steps += 1
            seen = machine.next_message()
    except ProtocolBreach as breach:
        return str(breach), machine.state, steps
    return seen, machine.state, steps


@given(message=MESSAGES, state=st.sampled_from([State.COMPILING, State.RUNNING]))
def test_a_large_message_is_decoded_in_steps_and_means_the_same(message: FromWorker, state: State) -> None:
    """What is told of it comes with the last step."""
    small = heard(message, state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "_LARGE_FRAME_BYTES", 0)
        large = heard(message, state)
    assert small[:2] == large[:2]
    assert small[0] is not None
    assert (small[2], large[2]) == (1, 3)


@given(message=MESSAGES)
def test_every_message_survives_the_wire(message: FromWorker) -> None:
    """What is encoded is decoded to the same record."""
    reader = FrameReader(100_000)
    reader.feed(frame(encode_from_worker(message)))
    payload = reader.next_frame()
    assert payload is not None
    assert decode_from_worker(payload) == message


@given(data=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_but_a_breach(data: bytes) -> None:
    """Whatever a worker writes, the machine names a breach or waits."""
    machine = HostProtocol(max_frame_bytes=100, max_narration=3)
    machine.send_start(START)
    machine.receive(data)
    try:
        for _ in range(60):
            if machine.next_message() is None:
                return
    except ProtocolBreach:
        assert machine.state is State.BROKEN
