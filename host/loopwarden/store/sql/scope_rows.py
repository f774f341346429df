"""Budgets that span runs, as rows: scopes, what their windows hold, and the log of their changes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from loopwarden.logs import run_logger
from loopwarden.store.budgets import check_scope
from loopwarden.store.errors import StoreError
from loopwarden.store.shared import Scope, ScopeChange, ScopeUse
from loopwarden.store.sql.rows import LARGEST, Damaged, integer, real, shown_text, text
from loopwarden.store.sql.transaction import Row, Transaction
from loopwarden.store.windows import FOREVER, Window, window_of

_COLUMNS: Final = "name, max_agents, max_tokens, max_cost_usd, per, zone, on_budget"

_MOST_COST_USD: Final = 1e15
"""What a window counts at most."""

UseKey: TypeAlias = tuple[str, str]
"""Scope and window."""


@dataclass(slots=True)
class Use:
    """What a window holds, and whether that has changed in this transaction."""

    agents: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unknown_usage: int = 0
    is_changed: bool = False


def set_scope(tx: Transaction, scope: Scope, by: str) -> None:
    """Make or change a scope, and log it. Raises `StoreError` for a scope that cannot be."""
    try:
        check_scope(scope)
    except ValueError as error:
        raise StoreError(str(error)) from None
    cost = None if scope.max_cost_usd is None else float(scope.max_cost_usd)
    values = (scope.name, scope.max_agents, scope.max_tokens, cost, scope.per, scope.zone, scope.on_budget)
    tx.execute(
        f"INSERT INTO scopes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
        "max_agents = excluded.max_agents, max_tokens = excluded.max_tokens, max_cost_usd = excluded.max_cost_usd, "
        "per = excluded.per, zone = excluded.zone, on_budget = excluded.on_budget",
        values,
    )
    tx.execute(
        f"INSERT INTO scope_log (changed_at, changed_by, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (tx.now(), shown_text(by), *values),
    )


def list_scopes(tx: Transaction) -> list[ScopeUse]:
    """All scopes with what their current windows hold. A damaged one is left out, with a warning in the log."""
    now = tx.now()
    listed: list[ScopeUse] = []
    for row in tx.rows(f"SELECT {_COLUMNS} FROM scopes ORDER BY name"):
        try:
            scope = _scope(row)
            window = _window(scope, now)
            use = _read_use(tx, (scope.name, window.name))
        except Damaged as damage:
            run_logger("").warning("a budget is left out of the list", scope=str(row[0]), problem=str(damage))
            continue
        listed.append(scope_use(scope, window, use))
    return listed


def scope_log(tx: Transaction, name: str) -> list[ScopeChange]:
    """Who changed a scope, and when; the oldest first. Raises `StoreError`."""
    found = tx.rows(f"SELECT changed_at, changed_by, {_COLUMNS} FROM scope_log WHERE name = ? ORDER BY number", (name,))
    try:
        return [
            ScopeChange(at=real("changed_at", at), by=text("changed_by", by), scope=_scope(tuple(row)))
            for at, by, *row in found
        ]
    except Damaged as damage:
        raise StoreError(f"the log of the budget {name!r} is damaged: {damage}") from None


def scope_use(scope: Scope, window: Window, use: Use) -> ScopeUse:
    """A scope and what one window of it holds, as records."""
    return ScopeUse(
        scope=scope,
        window=window.name,
        frees_at=window.frees_at,
        agents=use.agents,
        tokens=use.tokens,
        cost_usd=use.cost_usd,
        unknown_usage=use.unknown_usage,
    )


class ScopeBook:
    """The scopes that one transaction charges: read once, locked in byte order, written back at its end."""

    def __init__(self, tx: Transaction, names: Iterable[str], spent: Iterable[UseKey]) -> None:
        """Lock and read the scopes `names`, their current windows, and the windows that usage is added to.

        A scope that nobody has set has no limit; what it is charged is counted all the same.
        """
        self._tx = tx
        self._charges: dict[tuple[str, str, str], int] = {}
        self._uses: dict[UseKey, Use] = {}
        self._scopes: dict[str, tuple[Scope, Window]] = {}
        self._damage: dict[str, str] = {}
        spent_keys = set(spent)
        ordered = sorted({*names, *(name for name, _ in spent_keys)})
        if not ordered:
            return
        self._lock(ordered)
        self._read_scopes(ordered, tx.now())
        keys = spent_keys | {(name, window.name) for name, (_, window) in self._scopes.items()}
        for key in sorted(keys):
            try:
                self._uses[key] = _read_use(tx, key)
            except Damaged as damage:
                self._damage[key[0]] = str(damage)

    def problem(self, names: Iterable[str]) -> str | None:
        """What keeps these scopes from being charged; None when nothing does."""
        for name in names:
            if name in self._damage:
                return f"the rows of the budget {name!r} are damaged: {self._damage[name]}"
        return None

    def current(self, name: str) -> tuple[Scope, Window, Use]:
        """A scope, its current window, and what that holds."""
        scope, window = self._scopes[name]
        return scope, window, self._uses[name, window.name]

    def charge(self, run_id: str, name: str) -> str:
        """Charge one agent of a run to the current window of a scope; returns the name of the window."""
        _, window, use = self.current(name)
        use.agents += 1
        use.is_changed = True
        key = (run_id, name, window.name)
        self._charges[key] = self._charges.get(key, 0) + 1
        return window.name

    def spend(self, name: str, window: str, *, tokens: int | None, cost_usd: float | None) -> None:
        """Add what an attempt used to the window that its ask was charged to; None: not known."""
        scope, use = self._scopes[name][0], self._uses[name, window]
        is_unknown = (
            (tokens is None and cost_usd is None)
            # What the budget bounds, and cannot see.
            or (tokens is None and scope.max_tokens is not None)
            or (cost_usd is None and scope.max_cost_usd is not None)
        )
        # No provider may bring a sum to where no column holds it: every ask would be refused from then on.
        use.tokens = min(use.tokens + (tokens or 0), LARGEST)
        use.cost_usd = min(use.cost_usd + (cost_usd or 0.0), _MOST_COST_USD)
        use.unknown_usage += int(is_unknown)
        use.is_changed = True

    def save(self) -> None:
        """Write back what changed."""
        changed = [
            (name, window, use.agents, use.tokens, use.cost_usd, use.unknown_usage)
            for (name, window), use in sorted(self._uses.items())
            if use.is_changed
        ]
        if changed:
            self._tx.execute_many(
                "INSERT INTO scope_use (name, budget_window, agents, tokens, cost_usd, unknown_usage) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name, budget_window) DO UPDATE SET agents = excluded.agents, "
                "tokens = excluded.tokens, cost_usd = excluded.cost_usd, unknown_usage = excluded.unknown_usage",
                changed,
            )
        if self._charges:
            self._tx.execute_many(
                "INSERT INTO run_charges (run_id, name, budget_window, agents) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (run_id, name, budget_window) DO UPDATE SET agents = run_charges.agents + excluded.agents",
                [(*key, agents) for key, agents in sorted(self._charges.items())],
            )

    def _read_scopes(self, ordered: list[str], now: float) -> None:
        self._scopes = {name: (Scope(name=name), Window(FOREVER, None)) for name in ordered}
        marks = ", ".join("?" * len(ordered))
        for row in self._tx.rows(f"SELECT {_COLUMNS} FROM scopes WHERE name IN ({marks})", ordered):
            try:
                scope = _scope(row)
                self._scopes[scope.name] = (scope, _window(scope, now))
            except Damaged as damage:
                self._damage[str(row[0])] = str(damage)

    def _lock(self, ordered: list[str]) -> None:
        if not self._tx.dialect.lock:
            return
        # Not every scope that is charged has a row of its own to lock: its uses are locked by this one.
        self._tx.execute_many(
            "INSERT INTO scope_locks (name) VALUES (?) ON CONFLICT (name) DO NOTHING", [(name,) for name in ordered]
        )
        marks = ", ".join("?" * len(ordered))
        self._tx.rows(
            f"SELECT name FROM scope_locks WHERE name IN ({marks}) ORDER BY name{self._tx.dialect.lock}", ordered
        )


def _read_use(tx: Transaction, key: UseKey) -> Use:
    found = tx.rows(
        "SELECT agents, tokens, cost_usd, unknown_usage FROM scope_use WHERE name = ? AND budget_window = ?", key
    )
    if not found:
        return Use()
    agents, tokens, cost, unknown = found[0]
    return Use(
        integer("count of agents", agents),
        integer("count of tokens", tokens),
        real("cost", cost),
        integer("count of unknown usage", unknown),
    )


def _scope(row: Row) -> Scope:
    name, max_agents, max_tokens, max_cost, per, zone, on_budget = row
    found: dict[str, Any] = {
        "name": text("name", name),
        "max_agents": None if max_agents is None else integer("max_agents", max_agents),
        "max_tokens": None if max_tokens is None else integer("max_tokens", max_tokens),
        "max_cost_usd": None if max_cost is None else real("max_cost_usd", max_cost),
        "per": text("per", per),
        "zone": text("zone", zone),
        "on_budget": text("on_budget", on_budget),
    }
    scope = Scope(**found)
    try:
        check_scope(scope)
    except ValueError as error:
        raise Damaged(str(error)) from None
    return scope


def _window(scope: Scope, now: float) -> Window:
    return window_of(scope.per, scope.zone, now)
