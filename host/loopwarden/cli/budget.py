"""`loopwarden budget`: budgets that span runs, shown, set, and who set them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loopwarden.cli import values
from loopwarden.cli.loop_commands import as_command, shared_options
from loopwarden.cli.output import Output
from loopwarden.cli.store_access import no_such, person, shown_time, with_store
from loopwarden.cli.tables import show_table
from loopwarden.display import dollars
from loopwarden.failures import InvalidRequest
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.budgets import check_scope
from loopwarden.store.shared import Scope, ScopeChange, ScopeUse

HELP: Final = "Budgets that span runs: what is used, what is allowed, who changed it."
_HEADINGS: Final = ("budget", "window", "agents", "tokens", "cost", "unknown", "on budget", "frees")
_NO_LIMIT: Final = "none"


def budget_app(config: Path | None) -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(help=HELP, rich_markup_mode=None)
    app.command("show", help="Show each budget with what its current window holds.")(_show(config))
    app.command("set", help="Make or change a budget. What is not given stays as it is.")(_set(config))
    app.command("log", help="Show who changed a budget, and when.")(_log(config))
    return app


# ---- show


def _show(config: Path | None) -> Callable[..., int]:
    async def look(store: Store, _: Settings) -> list[ScopeUse]:
        return await store.scopes()

    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        uses = with_store(config, look)
        if given["name"] is not None:
            uses = [_named(given["name"], uses)]
        output.show_object({"exit": 0, "budgets": [_use_object(use) for use in uses]})
        if uses:
            show_table(_HEADINGS, [_cells(use) for use in uses], output)
        else:
            output.show("no budgets yet; `loopwarden budget set NAME --max-agents N` makes one")
        return 0

    name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="This one alone.", show_default=False)]
    return as_command(run, {"name": (name, None), **shared_options("json", "config")})


def _named(name: str, uses: list[ScopeUse]) -> ScopeUse:
    for use in uses:
        if use.scope.name == name:
            return use
    raise no_such("budget", name, [use.scope.name for use in uses])


def _cells(use: ScopeUse) -> tuple[str, ...]:
    scope = use.scope
    return (
        scope.name,
        use.window if scope.per == "forever" else f"{use.window} ({scope.zone})",
        _of(f"{use.agents:,}", None if scope.max_agents is None else f"{scope.max_agents:,}"),
        _of(f"{use.tokens:,}", None if scope.max_tokens is None else f"{scope.max_tokens:,}"),
        _of(dollars(use.cost_usd), None if scope.max_cost_usd is None else dollars(scope.max_cost_usd)),
        f"{use.unknown_usage:,}",
        scope.on_budget,
        shown_time(use.frees_at, scope.zone),
    )


def _of(used: str, limit: str | None) -> str:
    return used if limit is None else f"{used} of {limit}"


def _use_object(use: ScopeUse) -> dict[str, Any]:
    return {
        **_scope_object(use.scope),
        "window": use.window,
        "freesAt": use.frees_at,
        "agents": use.agents,
        "tokens": use.tokens,
        "costUsd": use.cost_usd,
        "unknownUsage": use.unknown_usage,
    }


def _scope_object(scope: Scope) -> dict[str, Any]:
    return {
        "name": scope.name,
        "maxAgents": scope.max_agents,
        "maxTokens": scope.max_tokens,
        "maxCostUsd": scope.max_cost_usd,
        "per": scope.per,
        "zone": scope.zone,
        "onBudget": scope.on_budget,
    }


# ---- set


def _set(config: Path | None) -> Callable[..., int]:
    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        changes = {name: value for name in _CHANGES if (value := given[name]) is not None}
        if not changes:
            raise InvalidRequest("say what to set, such as --max-agents 200; `--help` shows what there is")

        async def change(store: Store, _: Settings) -> ScopeUse:
            return await _change(store, given["name"], changes)

        use = with_store(config, change)
        output.show_object({"exit": 0, "budget": _use_object(use)})
        show_table(_HEADINGS, [_cells(use)], output)
        return 0

    name = Annotated[str, typer.Argument(metavar="NAME", help="Such as nightly or tenant:acme.")]
    return as_command(run, {"name": (name, ...), **_CHANGES, **shared_options("json", "config")})


async def _change(store: Store, name: str, changes: dict[str, Any]) -> ScopeUse:
    before = next((use.scope for use in await store.scopes() if use.scope.name == name), Scope(name=name))
    wanted: dict[str, Any] = {key: None if value == _NO_LIMIT else value for key, value in changes.items()}
    scope = replace(before, **wanted)
    check_scope(scope)
    await store.set_scope(scope, person())
    return _named(name, await store.scopes())


def _whole_or_none(text: str) -> int | str:
    return _NO_LIMIT if text == _NO_LIMIT else values.count(text)


def _amount_or_none(text: str) -> float | str:
    if text == _NO_LIMIT:
        return _NO_LIMIT
    number = values.real_number(text)
    if number < 0:
        raise typer.BadParameter(f"{text[:80]!r} is no amount to stay within; write US dollars such as 5 or 2.50")
    return number


def _option(name: str, parser: Callable[[str], Any], metavar: str, help_text: str) -> tuple[Any, Any]:
    option = typer.Option(name, parser=parser, metavar=metavar, help=help_text, show_default=False)
    return Annotated[Any, option], None


_CHANGES: Final = {
    "max_agents": _option("--max-agents", _whole_or_none, "N|none", "Agents in one window, repeats included. Exact."),
    "max_tokens": _option("--max-tokens", _whole_or_none, "N|none", "Tokens in one window; looked at before each ask."),
    "max_cost_usd": _option(
        "--max-cost", _amount_or_none, "USD|none", "Money in one window; looked at before each ask."
    ),
    "per": _option(
        "--per",
        values.one_of("forever", "day", "week", "month"),
        "WINDOW",
        "forever, day, week (from Monday) or month.",
    ),
    "zone": _option("--zone", str, "ZONE", "The time zone of windows, such as Europe/Berlin; UTC."),
    "on_budget": _option(
        "--on-budget",
        values.one_of("end", "wait"),
        "end|wait",
        "End a run whose next agent is refused, or let it wait.",
    ),
}


# ---- log


def _log(config: Path | None) -> Callable[..., int]:
    def run(**given: Any) -> int:
        output = Output(json=given["json"])
        name = given["name"]

        async def look(store: Store, _: Settings) -> list[ScopeChange]:
            changes = await store.scope_log(name)
            if not changes:
                raise no_such("budget", name, [use.scope.name for use in await store.scopes()])
            return changes

        changes = with_store(config, look)
        output.show_object(
            {"exit": 0, "changes": [{"at": item.at, "by": item.by, **_scope_object(item.scope)} for item in changes]}
        )
        show_table(("when", "who", "what"), [(shown_time(item.at), item.by, _words(item)) for item in changes], output)
        return 0

    name = Annotated[str, typer.Argument(metavar="NAME", help="The budget.")]
    return as_command(run, {"name": (name, ...), **shared_options("json", "config")})


def _words(change: ScopeChange) -> str:
    scope = change.scope
    limits = [
        *([] if scope.max_agents is None else [f"{scope.max_agents:,} agents"]),
        *([] if scope.max_tokens is None else [f"{scope.max_tokens:,} tokens"]),
        *([] if scope.max_cost_usd is None else [dollars(scope.max_cost_usd)]),
    ]
    window = "in all" if scope.per == "forever" else f"a {scope.per} in {scope.zone}"
    return f"{', '.join(limits) or 'no limit'} {window}, then {scope.on_budget}"
