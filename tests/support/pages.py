"""The pages of documentation, as tests read them: their generated parts and their code blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:<!-- tested: ([a-z-]+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_IN_WORDS = ("…", "[OPTIONS]", " [--", "RUN")
"""What marks a line that describes a command and is none."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `name` is `PAGE/NAME` of its mark; None when it has none."""

    name: str | None
    language: str
    text: str


def pages() -> list[Path]:
    """All pages that hold examples."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/agents").glob("*.md"))]


def agent_pages() -> list[Path]:
    """Those whose examples name real agent programs."""
    alone = [ROOT / "docs/agents.md", ROOT / "docs/replace-your-bash-loop.md"]
    return [page for page in pages() if page.parent.name == "agents" or page in alone]


def needs_agent_programs(page: Path, line: str) -> bool:
    """Whether a line of a page starts a real agent program."""
    return page in agent_pages() or "--provider " in line or "--probe " in line


def commands(page: Path) -> list[str]:
    """The `loopwarden` lines in indented blocks of a page, also of blocks within lists."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ {4,7}(?:\$ )?loopwarden (.+?)(?: +#.*)?$", text, re.MULTILINE)
    return [line for line in lines if not any(mark in line for mark in _IN_WORDS)]


def blocks(of: list[Path] | None = None) -> list[Block]:
    """Every fenced block of these pages; of every page."""
    return [
        Block(f"{page.stem}/{name}" if name else None, language, text)
        for page in (pages() if of is None else of)
        for name, language, text in _BLOCK.findall(page.read_text(encoding="utf-8"))
    ]


def example(name: str) -> str:
    """The text of one marked block, such as `embed/events`."""
    (found,) = [block.text for block in blocks() if block.name == name]
    return found


def between(page: str, name: str) -> str:
    """The generated part of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name}: begin[^>]*-->\n(.*?)<!-- {name}: end -->", text, re.DOTALL)
    assert found is not None, f"{page} has no part {name}"
    return found.group(1)


def table(*rows: tuple[str, ...]) -> str:
    """A table with the first row as its head."""
    head, *body = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body]) + "\n"


def code(*names: str) -> str:
    """Names as a page shows them."""
    return ", ".join(f"`{name}`" for name in names)
