"""Text of agents on its way to a person."""

import json
import unicodedata

import pytest

from loopwarden.display import duration, plural, shown_json, shown_line, shown_text

ALSO_UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2800\u3164\ufe00\ufe0f\uffa0"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 漢字, 😀", "plain, ünïcode, 漢字, 😀"),
        ("\x1b[2J", "\\u001b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("a\r\nb\tc", "a\\u000d\\u000ab\\u0009c"),
        ("\x7f\x9b", "\\u007f\\u009b"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
        ("lone \ud800", "lone \\ud800"),
    ],
)
def test_a_line_shows_what_cannot_be_seen_as_escapes(text: str, shown: str) -> None:
    assert shown_line(text) == shown


def test_no_control_format_or_separator_character_of_this_unicode_version_gets_through() -> None:
    characters = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    assert len(characters) > 200
    assert [ascii(char) for char in [*characters, *ALSO_UNSEEN] if char in shown_line(char)] == []


def test_text_keeps_line_feeds_and_tabs_alone() -> None:
    assert shown_text("a\tb\r\nc\rd\x1b") == "a\tb\nc\\u000dd\\u001b"


def test_a_cut_counts_its_mark() -> None:
    assert shown_line("abcdef", 4) == "abc…"
    assert shown_line("abcd", 4) == "abcd"
    assert shown_line("\x00" * 100, 7) == "\\u0000…"


@pytest.mark.parametrize(
    "text", ["\x1b]0;title\x07", "\u202e", "\x7f", "\U000e0041", 'quote " and \\ backslash', "ü\u2028"]
)
def test_json_keeps_the_value_and_hides_nothing(text: str) -> None:
    shown = shown_json({"key " + text: [text]})
    assert json.loads(shown) == {"key " + text: [text]}
    assert shown_line(shown.replace("\n", " ")) == shown.replace("\n", " ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0 s"), (0.44, "0.4 s"), (5, "5 s"), (90, "90 s"), (150, "2 min 30 s"), (7200, "2 h"), (28800, "8 h"),
     (86400, "24 h"), (93600, "1 d 2 h")],
)  # fmt: skip
def test_a_duration_reads_as_people_say_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_one_is_singular() -> None:
    assert (plural(1, "agent"), plural(0, "agent"), plural(1000, "agent")) == ("1 agent", "0 agents", "1,000 agents")
