"""`loopwarden schedule`: runs that are submitted by the clock."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from typer.main import get_command

from loopwarden.cli import values
from loopwarden.cli.loop_commands import RunOptions, as_command, loop_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import prepare
from loopwarden.cli.request import Request, Target, is_file_name
from loopwarden.cli.store_access import no_such, person, shown_time, with_store
from loopwarden.cli.tables import show_table
from loopwarden.failures import InvalidRequest
from loopwarden.journal.entries import CheckSpec
from loopwarden.loops import find_loops
from loopwarden.settings import Settings, load_settings
from loopwarden.store.api import Store
from loopwarden.store.cron import check_cron, next_time
from loopwarden.store.names import check_name
from loopwarden.store.scheduled import ScheduledRun
from loopwarden.store.shared import Schedule
from loopwarden.store.windows import zone_of

HELP: Final = (
    "Runs that are submitted by the clock. Any host that drives queues does it; times that were missed make one run."
)
_ADD_HELP: Final = "Make a schedule. After its name comes a loop, with the options that `run LOOP --help` shows."
_HEADINGS: Final = ("schedule", "loop", "cron", "zone", "queue", "overlap", "state", "next")


def schedule_app(config: Path | None) -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, rich_markup_mode=None)
    rest = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("add", help=_ADD_HELP, context_settings=rest)(_add(config))
    app.command("list", help="List schedules, and when each is due.")(_list(config))
    app.command("pause", help="Submit nothing more by a schedule.")(_switch(config, paused=True))
    resume = "Submit by a schedule again, from the next time on; what was due meanwhile is left out."
    app.command("resume", help=resume)(_switch(config, paused=False))
    app.command("remove", help="Remove a schedule. Runs that it submitted stay.")(_remove(config))
    return app


# ---- add


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """When and where, apart from what is run."""

    name: str
    cron: str
    zone: str
    overlap: Literal["skip", "queue"]
    queue: str
    priority: int
    labels: dict[str, str]
    scopes: tuple[str, ...]
    replaces: bool


def _add(config: Path | None) -> Callable[..., int]:
    def run(ctx: typer.Context, **given: Any) -> int:
        output = Output(json=given["json"])
        settings = load_settings(config)
        terms = _terms(given)
        if is_file_name(given["loop"]):
            raise InvalidRequest(
                "a schedule names a loop, which every host knows; put the script into a folder of script_folders"
            )
        found = find_loops(settings).loop(given["loop"])
        target = Target(name=found.name, script=found.script, file=found.path)

        def act(request: Request, options: RunOptions) -> int:
            if options.dry_run:
                raise InvalidRequest("--dry-run belongs to `run`; `run` it once to see what a schedule would begin")
            return _save(terms, _scheduled(terms, request, settings), config, output)

        # The loop has options of its own, so its own command reads what is left of the line.
        total_is_set = "max_total_agents" in settings.limits_given
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        inner.command()(loop_command(target, total_is_set=total_is_set, program=(), action=act))
        name = f"loopwarden schedule add {terms.name} {found.name}"
        answer = get_command(inner)(args=list(ctx.args), prog_name=name, standalone_mode=False)
        return answer if isinstance(answer, int) else 0

    own = {
        "ctx": (typer.Context, ...),
        "name": _argument("NAME", "Of the schedule."),
        "loop": _argument("LOOP", "A loop."),
    }
    return as_command(run, {**own, **_TERMS, **shared_options("json", "config")})


def _terms(given: dict[str, Any]) -> _Terms:
    """Check what can be checked without a store. Raises `InvalidRequest`."""
    try:
        check_name(given["name"], "a schedule")
        check_name(given["queue"], "a queue")
        check_cron(given["cron"])
        zone_of(given["zone"])
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return _Terms(
        name=given["name"],
        cron=" ".join(given["cron"].split()),
        zone=given["zone"],
        overlap=given["overlap"],
        queue=given["queue"],
        priority=given["priority"] or 0,
        labels=dict(given["label"] or ()),
        scopes=tuple(sorted(set(given["scope"] or ()))),
        replaces=given["replace"],
    )


def _scheduled(terms: _Terms, request: Request, settings: Settings) -> ScheduledRun:
    """What will be submitted, checked as if it began now. Raises a subclass of `StartRefused`."""
    for option, value in (("--model", request.model), ("--pass-env", request.pass_env)):
        if value:
            raise InvalidRequest(
                f"{option} belongs to `run`: runs of a schedule use a provider as the settings of their host have it"
            )
    named = None if request.workspace is None else str(request.workspace)
    declared = None if named is None else settings.workspaces.get(named)
    prepared = prepare(request if declared is None else replace(request, workspace=declared), settings)
    folder = None if prepared.workspace is None else str(prepared.workspace)
    return ScheduledRun(
        script=request.target.name,
        args=request.args,
        queue=terms.queue,
        priority=terms.priority,
        labels=terms.labels,
        scopes=list(terms.scopes),
        provider=request.provider,
        workspace=folder if declared is None else named,
        share_workspace=request.share_workspace,
        isolation=request.isolation,
        checks=[CheckSpec(argv=list(check.argv)) for check in prepared.checks],
        limits={name: value for name, value in _limits(request).items() if value is not None},
        by=person(),
    )


def _limits(request: Request) -> dict[str, int | float | None]:
    """Only what was typed: the rest is for the host that submits, whenever it does."""
    return {
        "max_total_agents": request.max_total_agents,
        "max_extra_attempts": request.max_extra_attempts,
        "max_cost_usd": request.max_cost_usd,
        "agent_timeout_seconds": request.agent_timeout_seconds,
        "run_deadline_seconds": request.deadline_seconds,
    }


def _save(terms: _Terms, request: ScheduledRun, config: Path | None, output: Output) -> int:
    async def save(store: Store, settings: Settings) -> tuple[Schedule, bool]:
        if not terms.replaces and terms.name in [schedule.name for schedule in await store.schedules()]:
            raise InvalidRequest(f"there is a schedule {terms.name} already; give --replace, or another name")
        known = [use.scope.name for use in await store.scopes()]
        for scope in terms.scopes:
            if scope not in known:
                raise no_such("budget", scope, known)
        queues = {queue.name for queue in await store.queues()} | settings.queues.keys()
        schedule = Schedule(
            name=terms.name,
            cron=terms.cron,
            zone=terms.zone,
            overlap=terms.overlap,
            is_paused=False,
            next_at=next_time(terms.cron, terms.zone, await store.now()),
            request=request.to_json(),
        )
        await store.set_schedule(schedule)
        return schedule, terms.queue in queues

    schedule, is_known_queue = with_store(config, save)
    if not is_known_queue:
        output.say(
            f"note: no queue {terms.queue} is known yet; a host has to drive it: drive = N under its [queues.NAME]"
        )
    _show_one(schedule, output)
    return 0


# ---- list, pause, resume, remove


def _list(config: Path | None) -> Callable[..., int]:
    async def look(store: Store, _: Settings) -> list[Schedule]:
        return await store.schedules()

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        schedules = with_store(config, look)
        output.show_object({"exit": 0, "schedules": [_object(schedule) for schedule in schedules]})
        if schedules:
            show_table(_HEADINGS, [_cells(schedule) for schedule in schedules], output)
        else:
            output.show("no schedules yet; `loopwarden schedule add` makes one")
        return 0

    return as_command(run, shared_options("json", "config"))


def _switch(config: Path | None, *, paused: bool) -> Callable[..., int]:
    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def switch(store: Store, _: Settings) -> Schedule:
            schedule = _named(given["name"], await store.schedules())
            if schedule.is_paused == paused:
                return schedule
            # What was due during the pause was not wanted; so the next time is counted from now.
            due = schedule.next_at if paused else next_time(schedule.cron, schedule.zone, await store.now())
            schedule = replace(schedule, is_paused=paused, next_at=due)
            await store.set_schedule(schedule)
            return schedule

        _show_one(with_store(config, switch), output)
        return 0

    return as_command(run, {"name": _argument("NAME", "The schedule."), **shared_options("json", "config")})


def _remove(config: Path | None) -> Callable[..., int]:
    def run(**given: Any) -> int:
        output = Output(json=given["json"])

        async def remove(store: Store, _: Settings) -> None:
            if not await store.remove_schedule(given["name"]):
                raise no_such("schedule", given["name"], [item.name for item in await store.schedules()])

        with_store(config, remove)
        output.show_object({"exit": 0, "removed": given["name"]})
        output.show(f"removed {given['name']}")
        return 0

    return as_command(run, {"name": _argument("NAME", "The schedule."), **shared_options("json", "config")})


def _named(name: str, schedules: list[Schedule]) -> Schedule:
    for schedule in schedules:
        if schedule.name == name:
            return schedule
    raise no_such("schedule", name, [schedule.name for schedule in schedules])


def _show_one(schedule: Schedule, output: Output) -> None:
    output.show_object({"exit": 0, "schedule": _object(schedule)})
    show_table(_HEADINGS, [_cells(schedule)], output)


def _cells(schedule: Schedule) -> tuple[str, ...]:
    return (
        schedule.name,
        str(schedule.request.get("script", "?")),
        schedule.cron,
        schedule.zone,
        str(schedule.request.get("queue", "?")),
        schedule.overlap,
        "paused" if schedule.is_paused else "on",
        "" if schedule.is_paused else shown_time(schedule.next_at, schedule.zone),
    )


def _object(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "overlap": schedule.overlap,
        "isPaused": schedule.is_paused,
        "nextAt": None if schedule.is_paused else schedule.next_at,
        "request": dict(schedule.request),
    }


# ---- options


def _argument(metavar: str, help_text: str) -> tuple[Any, Any]:
    return Annotated[str, typer.Argument(metavar=metavar, help=help_text)], ...


def _option(name: str, kind: Any, metavar: str, help_text: str, *, parser: Any = None) -> Any:
    return Annotated[kind, typer.Option(name, parser=parser, metavar=metavar, help=help_text, show_default=False)]


_TERMS: Final[dict[str, tuple[Any, Any]]] = {
    "cron": (_option("--cron", str, "CRON", 'Minute, hour, day, month, weekday: "0 3 * * mon-fri".'), ...),
    "zone": (_option("--zone", str, "ZONE", "The time zone of the clock, such as Europe/Berlin; UTC."), "UTC"),
    "overlap": (
        _option(
            "--overlap",
            Any,
            "skip|queue",
            "While the run before is not over: leave this time out, or queue it; skip.",
            parser=values.one_of("skip", "queue"),
        ),
        "skip",
    ),
    "queue": (_option("--queue", str, "NAME", "The queue of its runs."), ...),
    "priority": (_option("--priority", Any, "N", "Higher ones go first; 0.", parser=values.whole_number), None),
    "label": (
        _option(
            "--label", list[Any] | None, "NAME=VALUE", "For your own searches; may be repeated.", parser=values.label
        ),
        None,
    ),
    "scope": (_option("--scope", list[str] | None, "NAME", "A budget to charge; may be repeated."), None),
    "replace": (Annotated[bool, typer.Option("--replace", help="Take the place of a schedule of this name.")], False),
}
