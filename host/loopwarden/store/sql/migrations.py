"""The tables, as a list of numbered steps that is only ever added to.

A store is brought to the newest format in one transaction when it is opened. A step may expand (a new table, a column
with a default); what it makes superfluous is removed a release later, so that hosts of the release before can finish
what they run. They claim nothing more: every claim looks at the format.
"""

from collections.abc import Callable
from typing import Final

from loopwarden.store.errors import StoreError, StoreTooNew
from loopwarden.store.sql.transaction import Dialect, Transaction


def _first(d: Dialect) -> list[str]:
    """The tables of format 1."""
    return [
        f"""CREATE TABLE runs (
            number {d.numbered},
            run_id {d.text} NOT NULL UNIQUE,
            run_key {d.text} UNIQUE,
            content_digest {d.text} NOT NULL,
            script {d.text} NOT NULL,
            provider {d.text} NOT NULL,
            workspace {d.text},
            is_exclusive {d.integer} NOT NULL,
            queue {d.text} NOT NULL,
            priority {d.integer} NOT NULL,
            not_before {d.real} NOT NULL,
            labels {d.text} NOT NULL,
            scopes {d.text} NOT NULL,
            source_digest {d.text} NOT NULL,
            contract_digest {d.text} NOT NULL,
            replay {d.text} NOT NULL,
            status {d.text} NOT NULL,
            stop_reason {d.text},
            failure_code {d.text},
            reason {d.text},
            epoch {d.integer} NOT NULL,
            owner {d.text},
            lease_until {d.real},
            head_seq {d.integer} NOT NULL,
            head_hash {d.text} NOT NULL,
            max_calls {d.integer} NOT NULL,
            max_extra {d.integer} NOT NULL,
            calls {d.integer} NOT NULL,
            extra {d.integer} NOT NULL,
            idle_claims {d.integer} NOT NULL,
            cancel_reason {d.text},
            submitted_at {d.real} NOT NULL,
            finished_at {d.real})""",
        # For claims: the first of many that wait is found without looking at the others, in the order of claims. No
        # column of a lease is in an index, so that renewing one stays cheap.
        "CREATE INDEX runs_waiting ON runs (queue, priority DESC, number, not_before) WHERE status = 'queued'",
        "CREATE INDEX runs_running ON runs (queue) WHERE status = 'running'",
        "CREATE INDEX runs_in_workspace ON runs (workspace) WHERE status = 'running'",
        "CREATE INDEX runs_finished ON runs (finished_at) WHERE status = 'finished'",
        # In SQLite not clustered by its key: a batch of many runs then writes few pages, not one for each run.
        f"""CREATE TABLE entries (
            run_id {d.text} NOT NULL,
            seq {d.integer} NOT NULL,
            body {d.blob} NOT NULL,
            hash {d.text} NOT NULL,
            PRIMARY KEY (run_id, seq))""",
        f"""CREATE TABLE blobs (
            run_id {d.text} NOT NULL,
            digest {d.text} NOT NULL,
            content {d.blob} NOT NULL,
            PRIMARY KEY (run_id, digest))""",
        f"""CREATE TABLE requests (
            number {d.numbered},
            run_id {d.text} NOT NULL,
            kind {d.text} NOT NULL,
            body {d.text} NOT NULL,
            asked_by {d.text} NOT NULL,
            asked_at {d.real} NOT NULL,
            given_epoch {d.integer} NOT NULL)""",
        "CREATE INDEX requests_of_run ON requests (run_id)",
        f"""CREATE TABLE scopes (
            name {d.text} PRIMARY KEY,
            max_agents {d.integer},
            max_tokens {d.integer},
            max_cost_usd {d.real},
            per {d.text} NOT NULL,
            zone {d.text} NOT NULL,
            on_budget {d.text} NOT NULL)""",
        f"""CREATE TABLE scope_log (
            number {d.numbered},
            name {d.text} NOT NULL,
            changed_by {d.text} NOT NULL,
            changed_at {d.real} NOT NULL,
            max_agents {d.integer},
            max_tokens {d.integer},
            max_cost_usd {d.real},
            per {d.text} NOT NULL,
            zone {d.text} NOT NULL,
            on_budget {d.text} NOT NULL)""",
        # What each window of a scope holds; kept when the runs are pruned.
        f"""CREATE TABLE scope_use (
            name {d.text} NOT NULL,
            budget_window {d.text} NOT NULL,
            agents {d.integer} NOT NULL,
            tokens {d.integer} NOT NULL,
            cost_usd {d.real} NOT NULL,
            unknown_usage {d.integer} NOT NULL,
            PRIMARY KEY (name, budget_window))""",
        f"CREATE TABLE scope_locks (name {d.text} PRIMARY KEY)",
        f"""CREATE TABLE run_charges (
            run_id {d.text} NOT NULL,
            name {d.text} NOT NULL,
            budget_window {d.text} NOT NULL,
            agents {d.integer} NOT NULL,
            PRIMARY KEY (run_id, name, budget_window))""",
        f"""CREATE TABLE queues (
            name {d.text} PRIMARY KEY,
            is_paused {d.integer} NOT NULL,
            max_running {d.integer})""",
        # Rows to lock, here and in scope_locks: who charges a scope, or takes a workspace, does it one after the other.
        f"CREATE TABLE workspaces (name {d.text} PRIMARY KEY)",
        f"""CREATE TABLE schedules (
            name {d.text} PRIMARY KEY,
            cron {d.text} NOT NULL,
            zone {d.text} NOT NULL,
            overlap {d.text} NOT NULL,
            is_paused {d.integer} NOT NULL,
            next_at {d.real} NOT NULL,
            request {d.text} NOT NULL)""",
        f"""CREATE TABLE tombstones (
            run_id {d.text} PRIMARY KEY,
            run_key {d.text} UNIQUE,
            head_seq {d.integer} NOT NULL,
            head_hash {d.text} NOT NULL,
            calls {d.integer} NOT NULL,
            attempts {d.integer} NOT NULL,
            charges {d.text} NOT NULL,
            pruned_at {d.real} NOT NULL)""",
    ]


STEPS: Final[tuple[Callable[[Dialect], list[str]], ...]] = (_first,)
"""Step n brings a store from format n-1 to format n. Never change one that was released."""

NEWEST: Final = len(STEPS)
"""The format that this Loopwarden writes."""


def migrate(tx: Transaction, store: str) -> None:
    """Bring a store to the newest format. `store` names it in errors. Raises `StoreTooNew`.

    The caller keeps others out meanwhile.
    """
    tx.execute(
        f"CREATE TABLE IF NOT EXISTS meta (name {tx.dialect.text} PRIMARY KEY, content {tx.dialect.text} NOT NULL)"
    )
    before = _format(tx)
    if before > NEWEST:
        raise too_new(store, before)
    if before == NEWEST:
        return
    for step in STEPS[before:]:
        for statement in step(tx.dialect):
            tx.execute(statement)
    tx.execute(
        "INSERT INTO meta (name, content) VALUES ('format', ?) "
        "ON CONFLICT (name) DO UPDATE SET content = excluded.content",
        (str(NEWEST),),
    )


def check_format(tx: Transaction, store: str) -> None:
    """Raise `StoreTooNew` when a newer Loopwarden has migrated the store meanwhile: this host must only drain."""
    found = _format(tx)
    if found > NEWEST:
        raise too_new(store, found)


def too_new(store: str, found: int) -> StoreTooNew:
    """The error for a store of format `found`."""
    return StoreTooNew(
        f"the store {store} has format {found}, and this Loopwarden knows formats up to {NEWEST}; "
        "install the newer version here, or choose another store"
    )


def _format(tx: Transaction) -> int:
    found = tx.rows("SELECT content FROM meta WHERE name = 'format'")
    if not found:
        return 0
    text = found[0][0]
    if not isinstance(text, str) or not text.isdecimal():
        raise StoreError("the format of the store cannot be read: its table meta was changed by hand")
    return int(text)
