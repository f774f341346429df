"""docs/behaviours.md cannot lag: each line of the list has one row, and each test that a row names is collected."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "behaviours.md"
LAST_LINE = 144
_TEST = re.compile(r"`(tests/[^`]+\.py::[^`]+)`")


def rows() -> list[tuple[int, str, str]]:
    """Number, behaviour and what holds it."""
    found = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [(int(number), behaviour, held) for number, behaviour, held in found]


def test_every_line_of_the_list_has_exactly_one_row() -> None:
    """In order, 1 to 144."""
    assert [number for number, _, _ in rows()] == list(range(1, LAST_LINE + 1))


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    """Nothing stays open."""
    for number, behaviour, held in rows():
        assert behaviour.strip(), number
        reason = re.match(r"(?:deliberate difference|not applicable): .{20,}", held)
        assert reason is not None or _TEST.search(held) is not None, number
        assert re.sub(r"`[^`]+`", "", held).count("`") == 0, number


def test_every_test_that_is_named_exists() -> None:
    """Collected by pytest itself, so that the ids of cases are checked too."""
    named = {test for _, _, held in rows() for test in _TEST.findall(held)}
    files = sorted({test.split("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["--collect-only", "-q", *files]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert listing.returncode == 0, listing.stdout[-2000:] + listing.stderr[-2000:]
    collected = set(listing.stdout.splitlines())
    collected |= {line.split("[")[0] for line in collected}
    assert named - collected == set()
