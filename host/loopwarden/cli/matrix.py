"""`loopwarden doctor --matrix`: attacks on the operating-system wall, made on this machine, and what stopped them."""

import asyncio
import platform
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from loopwarden.attack_attempt import Outcome
from loopwarden.cli.output import Output
from loopwarden.display import shown_line
from loopwarden.failures import EXIT_FAILED
from loopwarden.matrix import ALL, BUT_SECCOMP, CONTROL, Matrix, Row, Verdict, run_matrix
from loopwarden_engine.attacks.catalogue import LAUNCHER
from loopwarden_engine.confinement import STANDS, WALLS

__all__ = ["describe_matrix", "examine_walls"]

_HEADS: Final = {
    LAUNCHER: "launcher",
    "descriptors": "descr.",
    "identity": "identity",
    "no_new_privileges": "privil.",
    "landlock": "landlock",
    "rlimits": "rlimits",
    "seccomp": "seccomp",
}
_WIDTH: Final = 8
_PAGE_WIDTH: Final = 110


def examine_walls(output: Output) -> int:
    """Make the attacks, print what came of them, and return 0 when none got through. Raises `StartRefused`."""
    output.say("loopwarden: attacking the walls of this machine; this takes some seconds and changes nothing")
    matrix = asyncio.run(run_matrix())
    exit_code = EXIT_FAILED if matrix.has_failed else 0
    output.show_object({"exit": exit_code, **matrix.to_json()})
    output.show("\n".join(shown_line(line) for line in describe_matrix(matrix)))
    return exit_code


def describe_matrix(matrix: Matrix) -> list[str]:
    """The matrix for a person: families and walls, then everything that is not as it should be."""
    who = "root" if matrix.identity == "root" else "an ordinary user"
    made = (
        f"made as {who} on {platform.system()} {platform.release()}, {matrix.machine}, "
        f"Landlock ABI {matrix.landlock_abi}, in {matrix.duration_seconds:.0f} s"
    )
    families = dict.fromkeys(row.attack.family for row in matrix.rows)
    lines = [
        f"attacks on the operating-system wall, the language wall switched off: {len(matrix.rows)}",
        made,
        "",
        "tried: all; succeed: without any wall; then how many of these each wall stops alone, and the walls but",
        "seccomp together; through: how many get through all walls",
        "",
        _line("family", ["tried", "succeed", *_HEADS.values(), "but sec.", "through"]),
        *(
            _family_line(family, [row for row in matrix.rows if row.attack.family == family], matrix)
            for family in families
        ),
    ]
    lines += [_family_line("all", matrix.rows, matrix), ""]
    lines += [f"the wall {wall} does not stand: {matrix.walls[wall]}" for wall in WALLS if not _stands(matrix, wall)]
    lines += [
        f"ESCAPE: {row.attack.id}: {row.attack.goal}: {row.attempts[ALL].answer}"
        for row in matrix.having(Verdict.ESCAPE)
    ]
    lines += [f"no end in time: {row.attack.id}: {row.attack.goal}" for row in matrix.having(Verdict.UNCLEAR)]
    lines += [
        f"{wall} alone no longer stops {row.attack.id}: {row.attack.goal}" for row in matrix.rows for wall in row.lost
    ]
    lines += _unproven_lines(matrix.having(Verdict.UNPROVEN))
    return [*lines, _conclusion(matrix)]


def _family_line(family: str, rows: Sequence[Row], matrix: Matrix) -> str:
    proven = [row for row in rows if row.unproven_because is None]
    through = sum(row.verdict is Verdict.ESCAPE for row in rows)
    stopped = [
        str(sum(name in row.stopped_by for row in proven) or ".") if name == LAUNCHER or _stands(matrix, name) else "-"
        for name in _HEADS
    ]
    by_others = sum(
        BUT_SECCOMP in row.attempts and row.attempts[BUT_SECCOMP].outcome is Outcome.STOPPED for row in proven
    )
    return _line(family, [str(len(rows)), str(len(proven)), *stopped, str(by_others or "."), str(through or ".")])


def _line(first: str, cells: Sequence[str]) -> str:
    return f"{first:<15}" + "".join(f"{cell:>{_WIDTH + 1}}" for cell in cells)


def _stands(matrix: Matrix, wall: str) -> bool:
    return matrix.walls[wall] == STANDS


def _unproven_lines(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.unproven_because or row.attempts[CONTROL].answer, []).append(row.attack.id)
    lines = ["not proven here, because the attacks do not succeed without walls either:"]
    for reason, ids in names.items():
        lines += [f"  {reason}:", *_wrapped(ids)]
    return [*lines, ""]


def _wrapped(ids: Sequence[str]) -> list[str]:
    indent = " " * 4
    return wrap(", ".join(ids), _PAGE_WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _conclusion(matrix: Matrix) -> str:
    escapes = len(matrix.having(Verdict.ESCAPE))
    if escapes:
        return f"{escapes} of {len(matrix.rows)} attacks got through: do not run scripts here that you do not trust"
    if matrix.has_failed:
        return "nothing got through, but not everything is as it was when this version was made: see above"
    return "nothing got through"
