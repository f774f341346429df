"""The table of system calls in docs/confinement.md: made from the policy, and read back.

`python -m support.filter_table` writes it.
"""

from pathlib import Path

from loopwarden_engine.confinement.seccomp import ALWAYS_ALLOWED, ARGUMENT_RULES, REFUSED
from loopwarden_engine.confinement.syscalls import AARCH64, X86_64

PAGE = Path(__file__).parent.parent.parent / "docs" / "confinement.md"
BEGIN, END = "<!-- calls: generated from the policy; a test compares -->\n", "<!-- end of calls -->"


def make_table() -> str:
    """The table as the policy has it."""
    verdicts = [
        *((name, f"allowed: {rule}") for name, rule in ARGUMENT_RULES.items()),
        *((name, "allowed") for name in ALWAYS_ALLOWED),
        *((name, "`EPERM`") for name in REFUSED),
    ]
    rows = [
        f"| `{name}` | {X86_64.numbers.get(name, '-')} | {AARCH64.numbers.get(name, '-')} | {verdict} |\n"
        for name, verdict in verdicts
    ]
    return "\n| call | x86_64 | aarch64 | verdict |\n|---|---|---|---|\n" + "".join(rows) + "\n"


def read_table() -> str:
    """The table as the page has it."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def documented_calls() -> dict[str, tuple[dict[str, int], str]]:
    """Numbers by architecture, and the verdict, of each call on the page."""
    found = {}
    for line in read_table().strip().splitlines()[2:]:
        name, x86_64, aarch64, verdict = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = {"x86_64": x86_64, "aarch64": aarch64}
        found[name.strip("`")] = ({arch: int(text) for arch, text in numbers.items() if text != "-"}, verdict)
    return found


if __name__ == "__main__":
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(head + BEGIN + make_table() + END + rest.split(END)[1], encoding="utf-8")
