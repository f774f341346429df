"""Recorded records with fields that are missing or of another type, for readings that must never raise."""

import json
from collections.abc import Iterator
from typing import Any

from support.replay import recordings

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 1.5, -0.5, 1e308, 10**400, "", "text", "\ud800", [], [None], [{}], {}, {"type": {}},
)  # fmt: skip


def odd_records(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The record with each of its fields, at any depth, missing and replaced by every kind of JSON."""
    copy = json.dumps(record)

    def places(value: Any) -> Iterator[tuple[Any, ...]]:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (key,)
            if isinstance(inner, dict | list):
                yield from ((key, *rest) for rest in places(inner))

    for *path, key in places(record):
        for junk in JUNK:
            changed = json.loads(copy)
            inner = changed
            for step in path:
                inner = inner[step]
            inner[key] = junk
            yield changed
        if isinstance(key, str):
            del inner[key]
            yield changed


def kinds_of_records(program: str) -> list[dict[str, Any]]:
    """One record of each kind, with every field that any recorded one has; long lists cut short."""
    kinds: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for recording in recordings(program).values():
        for line in recording.stdout.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                short = {key: value[:2] if isinstance(value, list) else value for key, value in record.items()}
                kind = (str(record.get("type")), str(record.get("subtype")), "error" in record)
                kinds[kind] = short | kinds.get(kind, {})
    return list(kinds.values())
