"""`loopwarden events`: what happened in a run of the store, and what happens, whoever drives it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, assert_never

import typer

from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.receipt_view import moment
from loopwarden.cli.store_access import with_store
from loopwarden.cli.stored_runs import need_stored
from loopwarden.display import duration, shown_json, shown_line
from loopwarden.events import (
    AgentEnded,
    AgentProgress,
    AgentStarted,
    Event,
    ItemFailed,
    Log,
    Phase,
    RunEnded,
    RunHeld,
    RunResumed,
    RunStarted,
    RunWaiting,
)
from loopwarden.following import Following
from loopwarden.jobs.watching import events_of
from loopwarden.settings import Settings
from loopwarden.store.api import Store

_MAX_CHARS: Final = 300


def events_command(config: Path | None) -> Callable[..., int]:
    """The command."""

    def run(**given: Any) -> int:
        as_lines = Output(json=False)
        after = given["after"]

        def show(event: Event) -> None:
            if event.number > after:
                as_lines.show(shown_json(event.to_json(), indent=None) if given["json"] else event_line(event))

        async def act(store: Store, _: Settings) -> None:
            row = await need_stored(store, given["run"])
            if given["follow"]:
                async for event in events_of(store, row.run_id, after, lambda _: None):
                    show(event)
                return
            for event in await Following(store, row.run_id).more():
                show(event)

        with_store(config, act)
        return 0

    name = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or its beginning.")]
    follow = Annotated[bool, typer.Option("--follow", help="Go on until the run has ended, or is held.")]
    after_option = Annotated[int, typer.Option("--after", min=0, metavar="N", help="Only events with a higher number.")]
    as_json = Annotated[bool, typer.Option("--json", help="One JSON object a line, one line an event.")]
    own = {"run": (name, ...), "follow": (follow, False), "after": (after_option, 0), "json": (as_json, False)}
    return as_command(run, {**own, **shared_options("config")})


def event_line(event: Event) -> str:
    """One event on one line."""
    return f"{event.number:>5}  {moment(event.at)}  {_words(event)}"


def _words(event: Event) -> str:  # noqa: PLR0911 -- one return for each kind
    match event:
        case RunStarted(script=script, max_total_agents=most):
            return f"the run of {_shown(script)} began, with at most {most:,} agents"
        case Phase(title=title):
            return f"== {_shown(title)}"
        case Log(message=message):
            return f"   {_shown(message)}"
        case ItemFailed(combinator=combinator, index=index, message=message):
            place = f" at line {event.line}" if event.line is not None else ""
            return f"   item {index} of {_shown(combinator)} was lost{place}: {_shown(message)}"
        case AgentStarted(seq=seq, label=label, provider=provider):
            return f"#{seq} {_shown(label)} started, by {_shown(provider)}"
        case AgentProgress(seq=seq, message=message):
            return f"#{seq} {_shown(message)}"
        case AgentEnded():
            return _end_of_agent(event)
        case RunHeld(code=code, reason=reason):
            return f"held ({_shown(code)}): {_shown(reason)}"
        case RunWaiting(message=message):
            return f"waiting: {_shown(message)}"
        case RunResumed(host=host, by=by, why=why):
            on = _shown(host or "a host")
            return (
                f"taken over by {on}"
                if by is None
                else f"reopened by {_shown(by)}" + (f": {_shown(why)}" if why else "")
            )
        case RunEnded(stop_reason=stop_reason, failure=failure):
            return f"the run ended: {stop_reason}" + (f", {failure.code}: {_shown(failure.message)}" if failure else "")
        case _:
            assert_never(event)


def _end_of_agent(event: AgentEnded) -> str:
    attempts = f" and {event.attempts} attempts" if event.attempts > 1 else ""
    kind = f" ({event.failure_class.value})" if event.failure_class is not None else ""
    reason = f": {_shown(event.reason)}" if event.reason else ""
    return f"#{event.seq} {event.outcome.value} after {duration(event.seconds)}{attempts}{kind}{reason}"


def _shown(text: str) -> str:
    return shown_line(text, _MAX_CHARS)
