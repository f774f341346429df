"""Cases as data: one JSON object a line."""

import json
from pathlib import Path
from typing import Any

import pytest


def cases(path: Path) -> list[Any]:
    """The cases of a file as pytest parameters, named by their ids."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [pytest.param(row, id=row["id"]) for row in rows]


def same_json(left: object, right: object) -> bool:
    """Equality including types: 1 is neither 1.0 nor true."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
