"""A canned agent: no model, no key, no network. It plays the part of a coding agent in `loopwarden demo`.

Like any agent program it reads its prompt on standard input, works in the current folder and prints a report. What it
does is real (it runs the tests, edits a file, runs the tests again); how it knows the repair is not: the three repairs
stand below. It imports nothing of Loopwarden.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

# Test, file, what is wrong in it, what is right.
REPAIRS: Final = (
    ("test_total_adds_every_line", "shop/basket.py", "sum(line.price for", "sum(line.price * line.count for"),
    ("test_discount_begins_at_its_threshold", "shop/discount.py", "total > THRESHOLD", "total >= THRESHOLD"),
    ("test_receipt_pads_cents", "shop/receipt.py", "{cents % 100}", "{cents % 100:02d}"),
)
ROUND: Final = re.compile(r"\bRound (\d+)\b", re.IGNORECASE)


def failing_tests() -> list[str]:
    """Run the tests of the workspace and return the names of those that fail, in the order of `REPAIRS`."""
    command = [sys.executable, "-S", "-B", "-m", "unittest", "discover", "-v", "-s", "tests", "-t", "."]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    failing = {line.split()[0] for line in output.splitlines() if line.rstrip().endswith(("... FAIL", "... ERROR"))}
    return [test for test, *_ in REPAIRS if test in failing]


def repair(test: str) -> str:
    """Edit the file behind a failing test and return its name."""
    for name, file, wrong, right in REPAIRS:
        if name == test:
            path = Path(file)
            path.write_text(path.read_text(encoding="utf-8").replace(wrong, right), encoding="utf-8")
            return file
    raise ValueError(f"no repair is known for {test}")


def work() -> dict[str, object]:
    """One round: repair one failing test, run all of them, report."""
    before = failing_tests()
    if not before:
        return report("complete", "There was nothing left to repair.", ["All tests passed before any change."])
    file = repair(before[0])
    after = failing_tests()
    summary = f"Repaired {file}; {before[0]} passes now."
    evidence = [f"Failing tests before: {len(before)}, after: {len(after)}."]
    if after:
        return report("continue", summary, evidence, [f"Repair the code behind {test}." for test in after])
    return report("complete", summary, evidence)


def report(status: str, summary: str, evidence: list[str], next_steps: list[str] | None = None) -> dict[str, object]:
    """A report as Ralph's prompt asks for it."""
    return {"status": status, "summary": summary, "evidence": evidence, "nextSteps": next_steps or [], "blocker": ""}


def main() -> None:
    """Read the prompt, work, print the report."""
    prompt = sys.stdin.read()
    found = ROUND.search(prompt)
    sys.stdout.write(f"Canned demo agent, round {found[1] if found else '?'}. This is my report:\n")
    if "--lie" in sys.argv[1:]:
        done = report("complete", "All tests pass now.", ["I ran the tests and all of them passed."])
    else:
        done = work()
    sys.stdout.write(json.dumps(done, indent=2) + "\n")


if __name__ == "__main__":
    main()
