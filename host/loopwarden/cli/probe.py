"""`loopwarden providers --probe NAME`: one harmless question, asked through the real provider.

No run, no script, no budget: it is one attempt, and a person asked for it. It shows what an agent of a run would meet:
credentials, network, model, structured output.
"""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, assert_never

from loopwarden.agent_reply import provider_error
from loopwarden.attempt import Answered, AttemptEnd, Failed, Faulty, ask
from loopwarden.breaker import read_breakers, write_breaker
from loopwarden.cli.output import Output
from loopwarden.cli.provider_words import usage_words
from loopwarden.cli.signals import Interruption
from loopwarden.display import duration, shown_json, shown_line, shown_text
from loopwarden.failure_class import FailureClass
from loopwarden.failures import EXIT_COMPLETE, EXIT_FAILED, Code, InvalidRequest
from loopwarden.limits import Limits
from loopwarden.pace import Pace
from loopwarden.provider import AgentRequest, Provider, ProviderStartError
from loopwarden.providers.configured import (
    environment_notes,
    find_entry,
    make_provider,
    refuse_missing_program,
    with_choices,
)
from loopwarden.providers.home import private_folder
from loopwarden.providers.supervision.removal import remove_tree
from loopwarden.run_folder import RunFolderError
from loopwarden.settings import Settings
from loopwarden_engine.plain import JsonObject

TIMEOUT_SECONDS: Final = 120.0
PROMPT: Final = (
    "This only tests whether you can be reached. Use no tools and change nothing. "
    'Answer with a JSON object and nothing else: its only key is "answer", and the value of that is the text ready.'
)
"""Holds no JSON: a program that only repeats what it is told must not pass for one that answers."""
SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
_VALUE_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    end: AttemptEnd
    seconds: float


def probe(name: str, settings: Settings, output: Output, *, pass_env: tuple[str, ...] = ()) -> int:
    """Ask, and say what came back. Returns 0 when the provider answered, else 1. Raises `StartRefused`."""
    given = with_choices(name, find_entry(name, settings), pass_env=pass_env)
    refuse_missing_program(given)
    provider = make_provider(name, settings, given)
    for note in environment_notes(name, given):
        output.say(f"note: {note}")
    output.say(f"asking {name} one question, for at most {duration(TIMEOUT_SECONDS)}")
    interruption = Interruption()
    with _passing_folder() as workspace, _passing_folder() as folder:
        try:
            probed = asyncio.run(_watched(_ask(provider, _request(workspace, folder, output)), interruption))
        except asyncio.CancelledError:
            return output.break_down("interrupted; nothing of the agent is left", interruption.exit_code or EXIT_FAILED)
    closed = _close_breaker(name, settings, output) if isinstance(probed.end, Answered) else False
    code = EXIT_COMPLETE if isinstance(probed.end, Answered) else EXIT_FAILED
    output.show_object({"exit": code, "probe": _as_object(name, probed, breaker_closed=closed)})
    output.show("\n".join(_lines(name, probed, breaker_closed=closed)))
    return code


@contextmanager
def _passing_folder() -> Iterator[Path]:
    """A private empty folder. Whatever the agent leaves in it, nobody looks at it afterwards."""
    try:
        folder = private_folder(None).resolve()
    except (OSError, ProviderStartError) as error:
        raise InvalidRequest(f"no private folder could be made: {error}") from None
    try:
        yield folder
    finally:
        remove_tree(folder)


def _request(workspace: Path, folder: Path, output: Output) -> AgentRequest:
    limits = Limits()
    return AgentRequest(
        run_id="probe",
        seq=1,
        attempt=1,
        prompt=PROMPT,
        label="probe",
        phase=None,
        schema=SCHEMA,
        model=None,
        workspace=workspace,
        folder=folder,
        timeout_seconds=TIMEOUT_SECONDS,
        idle_seconds=TIMEOUT_SECONDS,
        grace_seconds=limits.agent_grace_seconds,
        max_output_bytes=limits.max_output_bytes,
        idempotency_key=secrets.token_hex(16),
        progress=lambda message: output.say(f"  {shown_line(message, _VALUE_CHARS)}"),
    )


async def _watched(asking: Coroutine[Any, Any, _Probed], interruption: Interruption) -> _Probed:
    """Ask, and let a signal cancel that: the provider ends its agent, and the folders are removed."""
    main = asyncio.current_task()
    assert main is not None
    interruption.on_first = lambda _reason: main.cancel()
    with interruption.watching():
        return await asking


async def _ask(provider: Provider, request: AgentRequest) -> _Probed:
    began = time.monotonic()
    task = asyncio.ensure_future(ask(provider, request, SCHEMA, Limits().max_frame_bytes, Pace()))
    try:
        await asyncio.wait([task], timeout=TIMEOUT_SECONDS)
    finally:
        # Whether it is late or we are interrupted: the provider ends its agent before we go on.
        is_late = not task.done()
        task.cancel()
        await asyncio.wait([task])
    end = None if task.cancelled() else _end(task)
    return _Probed(end=_as_late(end) if is_late or end is None else end, seconds=time.monotonic() - began)


def _end(task: "asyncio.Future[AttemptEnd]") -> AttemptEnd:
    error = task.exception()
    return task.result() if error is None else Faulty(code=Code.AGENT_RESULT, reason=provider_error(error))


def _as_late(said: AttemptEnd | None) -> Failed:
    late = f"it did not answer within {duration(TIMEOUT_SECONDS)}"
    if not isinstance(said, Failed):
        return Failed(failure_class=FailureClass.TIMEOUT, reason=late)
    return Failed(
        failure_class=FailureClass.TIMEOUT, reason=f"{late}; before that: {said.reason}", evidence=said.evidence,
        usage=said.usage,
    )  # fmt: skip


def _close_breaker(name: str, settings: Settings, output: Output) -> bool:
    if name not in read_breakers(settings.state_folder):
        return False
    try:
        write_breaker(settings.state_folder, name, None)
    except RunFolderError as error:
        output.say(f"note: the breaker of {name} stays open: {shown_line(str(error))}")
        return False
    return True


def _as_object(name: str, probed: _Probed, *, breaker_closed: bool) -> dict[str, Any]:
    end = probed.end
    usage = None if isinstance(end, Faulty) or end.usage is None else end.usage.to_json()
    return {
        "provider": name,
        "answered": isinstance(end, Answered),
        "seconds": round(probed.seconds, 3),
        "value": end.value if isinstance(end, Answered) else None,
        "failureClass": end.failure_class.value if isinstance(end, Failed) else None,
        "reason": None if isinstance(end, Answered) else end.reason,
        "evidence": end.evidence if isinstance(end, Failed) else None,
        "notes": [] if isinstance(end, Faulty) else list(end.notes),
        "usage": usage,
        "breakerClosed": breaker_closed,
    }


def _lines(name: str, probed: _Probed, *, breaker_closed: bool) -> list[str]:
    end, took = probed.end, duration(probed.seconds)
    match end:
        case Answered():
            value = shown_line(shown_json(end.value, indent=None), _VALUE_CHARS)
            lines = [f"{name} answered after {took}: {value}"]
        case Failed():
            lines = [f"{name} failed after {took} ({end.failure_class.value}): {shown_line(end.reason, _VALUE_CHARS)}"]
            if end.evidence:
                lines.append(f"  evidence     {shown_line(end.evidence, _VALUE_CHARS)}")
        case Faulty():
            return [f"{name} could not be asked: {shown_text(end.reason)}"]
        case _:
            assert_never(end)
    lines += [f"  note         {shown_line(note, _VALUE_CHARS)}" for note in end.notes]
    lines.append(f"  used         {usage_words(end.usage) or 'not known'}")
    if breaker_closed:
        lines.append("  breaker      was open; it is closed again")
    return lines
