"""Each promise of the design is a test suite, not a sentence: it is named by the modules that hold it."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROMISES = range(1, 10)
"""The nine of design section 1, in its order. Number 8 holds as far as it can without a store."""


def named_promises() -> dict[int, list[str]]:
    """The modules that say in their first line which promise they hold."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for number in re.findall(r"^Promise (\d)", words):
            found.setdefault(int(number), []).append(path.name)
    return found


@pytest.mark.parametrize("number", PROMISES)
def test_every_promise_is_held_by_tests(number: int) -> None:
    """One module at least says that it holds it."""
    assert named_promises().get(number)
