"""What deployments bring along (contracts, logs, disks, threads, other tasks) can fail without holding up a run."""

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from loopwarden import (
    AgentRequest,
    Check,
    Code,
    Conclusion,
    Contract,
    Host,
    InvalidRequest,
    Limits,
    Outcome,
    Script,
    StartRefused,
    events,
)
from loopwarden.contract import CallFacts, Delivery, Facts, Opening, PlainContract
from loopwarden.run_folder import RunFolder, RunFolderError
from loopwarden.slots import AgentSlots
from loopwarden_engine.messages import Log, Ready
from loopwarden_engine.plain import JsonObject, JsonValue
from support.census import descendants, descriptors
from support.stand_in import with_stand_in

LIMITS = Limits(agent_grace_seconds=0.1)
ASK = "def main(args):\n    return agent('p')\n"
COMPILES_LONG = "x = [" + "1 + 1, " * 30_000 + "]\ndef main(args):\n    return 1\n"


async def answer(request: AgentRequest) -> str:
    """Answer at once."""
    return "yes"


async def never(request: AgentRequest) -> str:
    """Never answer."""
    await asyncio.Event().wait()
    return "never"


class Panic(BaseException):
    """No Exception: what a library in Rust raises."""


class Broken(PlainContract):
    """A contract that fails in the methods it is told to."""

    def __init__(self, *names: str, error: type[BaseException] = RuntimeError) -> None:
        self._names = names
        self._error = error

    def _perhaps(self, name: str) -> None:
        if name in self._names:
            raise self._error(f"{name} is broken")

    def decode_args(self, args: object) -> JsonObject:
        self._perhaps("decode_args")
        return super().decode_args(args)

    def script_args(self, args: JsonObject, opening: Opening | None) -> JsonObject:
        self._perhaps("script_args")
        return super().script_args(args, opening)

    def max_total_agents(self, args: JsonObject) -> int | None:
        self._perhaps("max_total_agents")
        return None

    def args_json(self, args: JsonObject) -> JsonObject:
        self._perhaps("args_json")
        return super().args_json(args)

    def check_call(self, args: JsonObject, call: CallFacts, facts: Facts) -> None:
        self._perhaps("check_call")

    def decode_result(self, args: JsonObject, value: JsonValue, facts: Facts) -> JsonValue:
        self._perhaps("decode_result")
        return value

    def conclusion(self, args: JsonObject, result: JsonValue) -> Conclusion:
        self._perhaps("conclusion")
        if "odd conclusion" in self._names:
            return "fine"  # type: ignore[return-value]
        return super().conclusion(args, result)

    def last_handoff(self, args: JsonObject, deliveries: Sequence[Delivery]) -> JsonObject | None:
        self._perhaps("last_handoff")
        return None


def script(contract: Contract[Any, Any]) -> Script[Any, Any]:
    """A script that asks one agent, under `contract`."""
    return Script(name="s", source=ASK, contract=contract)


def run_with(runner: asyncio.Runner, contract: Contract[Any, Any], tmp_path: Path) -> Outcome[Any]:
    """The outcome of a run under `contract`, with a state folder, in time."""

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": answer}, limits=LIMITS, state_folder=tmp_path / "state") as host:
            return await asyncio.wait_for(host.run(script(contract)), 20)

    return runner.run(play())


@pytest.mark.parametrize("name", ["args_json", "last_handoff"])
def test_a_contract_that_fails_for_the_receipt_holds_up_no_run(
    runner: asyncio.Runner, tmp_path: Path, name: str
) -> None:
    """It is a problem in the receipt, and nothing else."""
    outcome = run_with(runner, Broken(name), tmp_path)
    assert outcome.value == "yes"
    assert any("contract" in problem for problem in outcome.receipt.problems)


@pytest.mark.parametrize("name", ["check_call", "decode_result", "conclusion", "odd conclusion"])
def test_a_contract_that_fails_in_a_run_ends_it_typed(runner: asyncio.Runner, tmp_path: Path, name: str) -> None:
    """CONTRACT, in the words of the mistake."""
    outcome = run_with(runner, Broken(name), tmp_path)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert "contract" in outcome.failure.message


@pytest.mark.parametrize("error", [Panic, SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("name", ["check_call", "decode_result"])
def test_what_is_no_exception_ends_the_run_all_the_same(
    runner: asyncio.Runner, tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    """Nothing that happens at a message may leave a run without its end."""
    outcome = run_with(runner, Broken(name, error=error), tmp_path)
    assert outcome.stop_reason == "error"


@pytest.mark.parametrize("name", ["decode_args", "script_args", "max_total_agents"])
def test_a_contract_that_fails_before_the_run_is_a_refusal(runner: asyncio.Runner, tmp_path: Path, name: str) -> None:
    """`start` raises a `StartRefused` and nothing else."""
    with pytest.raises(InvalidRequest, match="contract of the loop failed with RuntimeError"):
        run_with(runner, Broken(name), tmp_path)


def test_logs_that_fail_hold_up_no_run(runner: asyncio.Runner, tmp_path: Path) -> None:
    """A disk that is full behind the log, a processor of the embedder that raises."""

    def full(*_: object) -> Any:
        raise OSError(28, "no space left on device")

    structlog.configure(processors=[full])
    outcome = run_with(runner, Broken("decode_result"), tmp_path)
    assert outcome.failure is not None
    assert run_with(runner, PlainContract(), tmp_path).value == "yes"


def test_a_state_folder_that_vanishes_holds_up_no_run(runner: asyncio.Runner, tmp_path: Path) -> None:
    """The run completes; the receipt says what could not be written."""
    state = tmp_path / "state"

    async def vanish(request: AgentRequest) -> str:
        shutil.rmtree(state)
        return "yes"

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": vanish}, limits=LIMITS, state_folder=state) as host:
            return await asyncio.wait_for(host.run(Script.from_text(ASK)), 20)

    outcome = runner.run(play())
    assert outcome.value == "yes"
    assert outcome.receipt.problems


def test_half_of_a_run_folder_is_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full midway leaves neither a folder nor a descriptor."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = descriptors()
    monkeypatch.setattr("loopwarden.run_folder.fcntl.flock", full)
    with pytest.raises(RunFolderError, match="no space left"):
        RunFolder.create(tmp_path / "state", "run-1")
    assert descriptors() == before
    assert os.listdir(tmp_path / "state" / "runs") == []


def test_closing_a_host_ends_a_start_that_is_under_way(runner: asyncio.Runner) -> None:
    """The start is refused, wherever it was, and nothing of the host is left."""
    me = os.getpid()

    async def play(turns: int) -> None:
        host = await Host(providers={"default": answer}).__aenter__()
        starting = asyncio.create_task(host.start(Script.from_text(COMPILES_LONG)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 100:
            await asyncio.sleep(0.1 * turns / 200)
        await asyncio.wait_for(host.close(), 20)
        with contextlib.suppress(StartRefused):
            run = await asyncio.wait_for(starting, 20)
            assert (await run.wait()).stop_reason == "cancelled"

    runner.run(asyncio.sleep(0))
    before_processes, before_descriptors = descendants(me), descriptors()
    for turns in (1, 2, 101, 200, 300, 600):
        runner.run(play(turns))
        assert descendants(me) == before_processes, turns
        assert descriptors() == before_descriptors, turns


def test_a_start_that_is_cancelled_anywhere_leaves_nothing(runner: asyncio.Runner) -> None:
    """Twice cancelled as well: descriptors and workers go with the start."""
    me = os.getpid()

    async def play() -> None:
        async with Host(providers={"default": answer}) as host:
            await host.run(Script.from_text(ASK))
            await asyncio.sleep(0.05)
            processes, files = descendants(me), descriptors()
            for turns in range(12):
                starting = asyncio.create_task(host.start(Script.from_text(COMPILES_LONG)))
                for _ in range(turns):
                    await asyncio.sleep(0.001)
                starting.cancel()
                await asyncio.sleep(0)
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
            deadline = asyncio.get_running_loop().time() + 10
            while (descendants(me), descriptors()) != (processes, files):
                assert asyncio.get_running_loop().time() < deadline, (processes, files, descendants(me), descriptors())
                await asyncio.sleep(0.01)
            assert host.runs() == [host.runs()[0]]

    runner.run(play())


def test_a_run_that_is_beginning_counts_once_against_max_live_runs(runner: asyncio.Runner) -> None:
    """Two may live: a second start while the first compiles is not one too many."""

    async def play() -> list[Any]:
        async with Host(providers={"default": answer}, limits=Limits(max_live_runs=2)) as host:
            launcher = with_stand_in(host)
            first = asyncio.create_task(host.start(Script.from_text(ASK)))
            first_peer = await launcher.peers.get()
            await first_peer.receive()
            second = asyncio.create_task(host.start(Script.from_text(ASK)))
            second_peer = await asyncio.wait_for(launcher.peers.get(), 10)
            with pytest.raises(InvalidRequest, match="maxLiveRuns"):
                await host.start(Script.from_text(ASK))
            await second_peer.begin()
            first_peer.send(Ready(""))
            runs = [await first, await second]
            for run in runs:
                run.cancel()
            outcomes = [await run.wait() for run in runs]
            first_peer.end.close()
            second_peer.end.close()
            return outcomes

    assert [outcome.stop_reason for outcome in runner.run(play())] == ["cancelled", "cancelled"]


def test_what_a_worker_says_in_one_breath_with_ready_is_heard(runner: asyncio.Runner) -> None:
    """Nobody is awake yet to hear it; a run that then waits for ever would be the worker's to make."""

    async def play() -> None:
        async with Host(providers={"default": answer}) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(Script.from_text(ASK)))
            peer = await launcher.peers.get()
            await peer.receive()
            peer.send(Ready(""), Log("too early"))
            with pytest.raises(StartRefused, match="protocol"):
                await asyncio.wait_for(starting, 10)
            peer.end.close()

    runner.run(play())


def test_a_cancel_between_result_and_checks_leaves_the_checks_out(runner: asyncio.Runner, tmp_path: Path) -> None:
    """The outcome stands; what the operator did not want any more is not run, and nothing counts as verified."""
    runs: list[Any] = []

    class CancelsAtItsEnd(PlainContract):
        def conclusion(self, args: JsonObject, result: JsonValue) -> Conclusion:
            asyncio.get_running_loop().call_soon(runs[0].cancel)
            return super().conclusion(args, result)

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": answer}, limits=LIMITS) as host:
            check = Check(argv=("touch", str(tmp_path / "checked")))
            runs.append(await host.start(script(CancelsAtItsEnd()), workspace=tmp_path, checks=[check]))
            return await asyncio.wait_for(runs[0].wait(), 20)

    outcome = runner.run(play())
    assert (outcome.value, outcome.verified) == ("yes", None)
    assert any("checks" in problem for problem in outcome.receipt.problems)
    assert not (tmp_path / "checked").exists()


def test_cancel_from_another_thread_says_so_and_changes_nothing(runner: asyncio.Runner) -> None:
    """Half a cancel would leave a run without an end."""
    errors: list[BaseException] = []

    async def play() -> str:
        async with Host(providers={"default": never}, limits=LIMITS) as host:
            run = await host.start(Script.from_text(ASK))

            def cancel() -> None:
                try:
                    run.cancel("from a thread")
                except RuntimeError as error:
                    errors.append(error)

            thread = threading.Thread(target=cancel)
            thread.start()
            thread.join()
            assert not run.is_over
            run.cancel("from its own loop")
            outcome = await asyncio.wait_for(run.wait(), 10)
            assert outcome.failure is not None
            return outcome.failure.message

    assert "from its own loop" in runner.run(play())
    assert "call_soon_threadsafe" in str(errors[0])


def test_a_run_that_is_over_is_not_called_back_for_a_slot() -> None:
    """Else a busy host keeps every run that once waited."""
    called: list[str] = []
    slots = AgentSlots(1)
    assert slots.take(lambda: called.append("never"))

    def gone() -> None:
        called.append("gone")

    def waiting() -> None:
        called.append("waiting")

    assert not slots.take(gone)
    assert not slots.take(waiting)
    slots.withdraw(gone)
    slots.withdraw(gone)
    slots.give_back()
    assert called == ["waiting"]


def test_a_late_reader_of_many_events_gets_them_all_in_time(runner: asyncio.Runner) -> None:
    """10,000 lines of log, read from the first on after the end."""

    async def play() -> tuple[int, float]:
        source = "def main(args):\n    for n in range(10000):\n        log(str(n))\n"
        async with Host(providers={"default": answer}) as host:
            run = await host.start(Script.from_text(source))
            assert (await run.wait()).failure is None
            loop = asyncio.get_running_loop()
            began = loop.time()
            numbers = [event.number async for event in run.events() if isinstance(event, events.Log)]
            return len(numbers), loop.time() - began

    count, seconds = runner.run(play())
    assert count == 10_000
    assert seconds < 2
