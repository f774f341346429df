"""`loopwarden queue`: queues of runs over all hosts, listed, paused, resumed and bounded."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.store_access import no_such, with_store
from loopwarden.cli.tables import show_table
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.shared import Queue

HELP: Final = "Queues of runs, over all hosts."
_HEADINGS: Final = ("queue", "state", "waiting", "running", "at most")


def queue_app(config: Path | None) -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, rich_markup_mode=None)
    app.command("list", help="List queues with the runs that wait and that are live.")(_list(config))
    pause = "Claim no further run of a queue, on any host. Live runs go on."
    app.command("pause", help=pause)(_change(config, {}, lambda _: {"is_paused": True}))
    app.command("resume", help="Claim runs of a queue again.")(_change(config, {}, lambda _: {"is_paused": False}))
    most = typer.Argument(parser=_most, metavar="N|none", help="Runs that may be live at once, over all hosts.")
    limit = _change(config, {"most": (Annotated[Any, most], ...)}, lambda given: {"max_running": given["most"]})
    app.command("limit", help="Bound the runs of a queue that are live at once.")(limit)
    return app


def _most(text: str) -> int:
    """A number, or 0 for no bound, which is how stores take it."""
    return 0 if text == "none" else values.positive_number(text)


def _list(config: Path | None) -> Callable[..., int]:
    async def look(store: Store, settings: Settings) -> list[Queue]:
        return await _queues(store, settings)

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        queues = with_store(config, look)
        output.show_object({"exit": 0, "queues": [_object(queue) for queue in queues]})
        if queues:
            show_table(_HEADINGS, [_cells(queue) for queue in queues], output)
        else:
            output.show("no queues yet; `loopwarden submit --queue NAME` makes one, and [queues.NAME] in the settings")
        return 0

    return as_command(run, shared_options("json", "config"))


def _change(
    config: Path | None, own: dict[str, tuple[Any, Any]], wanted: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[..., int]:
    """A command that changes one queue. `wanted` makes the arguments of `Store.set_queue`."""

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        name = given["name"]

        async def change(store: Store, settings: Settings) -> Queue:
            known = await _queues(store, settings)
            if name not in [queue.name for queue in known]:  # a typo would leave the queue that was meant as it is
                raise no_such("queue", name, [queue.name for queue in known])
            await store.set_queue(name, **wanted(given))
            return next(queue for queue in await _queues(store, settings) if queue.name == name)

        queue = with_store(config, change)
        output.show_object({"exit": 0, "queue": _object(queue)})
        show_table(_HEADINGS, [_cells(queue)], output)
        return 0

    name_argument = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]
    return as_command(run, {"name": (name_argument, ...), **own, **shared_options("json", "config")})


async def _queues(store: Store, settings: Settings) -> list[Queue]:
    """The queues of the store, and those of the settings that it does not know yet."""
    known = {queue.name: queue for queue in await store.queues()}
    for name in settings.queues.keys() - known.keys():
        known[name] = Queue(name=name, is_paused=False, max_running=None, queued=0, running=0)
    return [known[name] for name in sorted(known)]


def _cells(queue: Queue) -> tuple[str, ...]:
    most = "no bound" if queue.max_running is None else f"{queue.max_running:,}"
    return queue.name, "paused" if queue.is_paused else "open", f"{queue.queued:,}", f"{queue.running:,}", most


def _object(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "isPaused": queue.is_paused,
        "maxRunning": queue.max_running,
        "queued": queue.queued,
        "running": queue.running,
    }
