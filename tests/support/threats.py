"""The generated parts of docs/threats.md: what each wall stops, from the corpora that the runners prove.

Run `python -m support.threats` in the folder `tests` to write them anew. Nothing here depends on the machine.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwarden_engine.attacks.catalogue import LAUNCHER, load_catalogue
from loopwarden_engine.confinement import WALLS
from support.pages import ROOT, table

PAGE = "docs/threats.md"
ESCAPE = ROOT / "tests" / "escape"
PARTS = {
    "language": "Scripts against the language wall, the operating-system wall on",
    "os": "Plain Python against the operating-system wall, the language wall off",
    "resources": "Scripts and schemas that use up what the machine has",
    "frames": "A worker that was taken over, against the host",
}
"""By the name of the corpus and of the file of its families."""

BEFORE, RUNNING = "refused before the run", "stopped in the run"
OS_COLUMNS = (LAUNCHER, *WALLS)
PROTOCOL, LIMITS, RULES, IGNORED = "protocol", "limits", "rules", "no effect"
COLUMNS = (BEFORE, RUNNING, *OS_COLUMNS, PROTOCOL, LIMITS, RULES, IGNORED)

EXPECTED = {"rejected": BEFORE, "harmless": RUNNING, "limit": LIMITS}
"""What a corpus of scripts says of an entry; honest scripts that must work are no attacks and have no place."""
ENDINGS = {
    PROTOCOL: ("PROTOCOL", "LAUNCH_FAILED", "WORKER_LOST"),
    LIMITS: ("CPU_LIMIT", "MEMORY_LIMIT", "NARRATION_LIMIT", "DEADLINE", "AGENT_CAP", "ITEM_CAP"),
    BEFORE: ("SCRIPT_REJECTED", "ARGS_INVALID", "INVALID_REQUEST"),
    RULES: (
        "SCRIPT_ERROR",
        "INVALID_ARGUMENT",
        "UNSUPPORTED_OPTION",
        "UNSUPPORTED_SCHEMA",
        "AGENT_START",
        "AGENT_RESULT",
        "RESULT_INVALID",
        "CONTRACT",
        "PROVENANCE",
    ),
    IGNORED: ("completed", "value", "CANCELLED", "given up"),
}
"""How a run may end, and what that says of who stopped the attack. Of several endings the first that is told counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of one part: how many attacks it has, and how many of them each column stops alone."""

    name: str
    title: str
    tries: str
    known_from: str
    entries: int
    stopped: Mapping[str, int]


def families_of(part: str) -> list[Family]:
    """The families of a part, in the order of their file; none while the part has no corpus."""
    described_in = ESCAPE / "families" / f"{part}.toml"
    described = tomllib.loads(described_in.read_text(encoding="utf-8")) if described_in.exists() else {}
    attacks = os_attacks() if part == "os" else corpus_attacks(part)
    names = dict.fromkeys([*described, *(family for family, _ in attacks)])
    found = []
    for name in names:
        places = [columns for family, columns in attacks if family == name]
        words = described.get(name, {"title": name, "tries": "", "known_from": ""})
        found.append(
            Family(
                name=name,
                title=words["title"],
                tries=words["tries"],
                known_from=words["known_from"],
                entries=len(places),
                stopped=Counter(column for columns in places for column in columns),
            )
        )
    return [family for family in found if family.entries]


def os_attacks() -> list[tuple[str, tuple[str, ...]]]:
    """Family and columns of each attack of the catalogue."""
    return [(attack.family, tuple(claim.wall for claim in attack.stopped_by)) for attack in load_catalogue()]


def corpus_attacks(part: str) -> list[tuple[str, tuple[str, ...]]]:
    """The same of a corpus."""
    path = ESCAPE / f"{part}.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["family"], (place_of(row),)) for row in rows if row.get("expect") != "control"]


def place_of(row: Mapping[str, Any]) -> str:
    """The column of one entry. Raises `ValueError` when it does not say how it ends."""
    told = row.get("ends", row.get("expect"))
    if isinstance(told, str) and told in EXPECTED:
        return EXPECTED[told]
    if isinstance(told, dict):
        return IGNORED  # it ends with this value, and costs nobody anything
    first = told[0] if isinstance(told, list) else told
    for column, codes in ENDINGS.items():
        if first in codes:
            return column
    raise ValueError(f"{row['id']} does not say how it ends")


def matrix_table() -> str:
    """Rows families, columns what stops them."""
    head = ("family", "attacks", *(column.replace("_", " ") for column in COLUMNS))
    rows: list[tuple[str, ...]] = []
    for part in PARTS:
        families = families_of(part)
        rows += [row_of(family.title, family.entries, family.stopped) for family in families]
    everything = [family for part in PARTS for family in families_of(part)]
    total: Counter[str] = Counter()
    for family in everything:
        total.update(family.stopped)
    return table(head, *rows, row_of("**all**", sum(family.entries for family in everything), total))


def row_of(title: str, entries: int, stopped: Mapping[str, int]) -> tuple[str, ...]:
    """One row; an empty cell is a zero."""
    return (title, str(entries), *(str(stopped.get(column) or "") for column in COLUMNS))


def family_tables() -> str:
    """What the families try, and where they are known from."""
    texts = []
    for part, title in PARTS.items():
        families = families_of(part)
        if families:
            rows = [(family.title, family.tries, family.known_from) for family in families]
            texts.append(f"### {title}\n\n" + table(("family", "what it tries to obtain", "known from"), *rows))
    return "\n".join(texts)


def claims_table() -> str:
    """How many walls stop an attack of the operating-system part alone."""
    counts = Counter(len(columns) for _, columns in os_attacks())
    return table(
        ("walls that stop it alone", "attacks"),
        *((str(number), str(counts[number])) for number in sorted(counts)),
    )


GENERATED = {"matrix": matrix_table, "claims": claims_table, "families": family_tables}


def write(page: Path) -> None:
    """Write the generated parts anew."""
    text = page.read_text(encoding="utf-8")
    for name, make in GENERATED.items():
        pattern = re.compile(rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        made = make()
        text, count = pattern.subn(lambda found, made=made: found[1] + made + found[2], text)  # type: ignore[misc]
        assert count == 1, f"{page} has no part {name}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(ROOT / PAGE)
