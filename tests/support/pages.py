"""The pages of documentation, as tests read them: their generated parts and their code blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:<!-- tested: ([a-z-]+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `name` is `PAGE/NAME` of its mark; None when it has none."""

    name: str | None
    language: str
    text: str


def pages() -> list[Path]:
    """All pages that hold examples."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[Block]:
    """Every fenced block of every page."""
    return [
        Block(f"{page.stem}/{name}" if name else None, language, text)
        for page in pages()
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
