"""The line on which a key of a TOML text stands."""

import pytest

from loopwarden.toml_lines import line_of_key

TEXT = '''\
# a comment
default_provider = "a"

[providers.a]
type = "command"
argv = [
    "program",   # [limits] stands in a comment
    "[limits]",
]

[providers.b]
note = """
argv = ["not this one"]
"""
argv = ["b"]

[limits]
max_total_agents = 5
loops.deep."quoted key" = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("default_provider",), 2),
        (("providers",), 4),
        (("providers", "a"), 4),
        (("providers", "a", "type"), 5),
        (("providers", "a", "argv"), 6),
        (("providers", "a", "argv", 1), 6),
        (("providers", "b", "argv"), 15),
        (("providers", "b", "note"), 12),
        (("limits",), 17),
        (("limits", "max_total_agents"), 18),
        (("limits", "loops", "deep", "quoted key"), 19),
        (("providers", "b", "missing"), 11),
        (("missing",), None),
        ((), None),
    ],
)
def test_the_line_is_that_of_the_innermost_key_that_stands_in_the_text(
    path: tuple[str | int, ...], line: int | None
) -> None:
    assert line_of_key(TEXT, path) == line


def test_a_line_separator_inside_a_string_is_no_line_break() -> None:
    assert line_of_key('a = "x\u2028y"\nb = 1\n', ("b",)) == 2


def test_windows_line_ends_count_once() -> None:
    assert line_of_key("a = 1\r\n\r\nb = 2\r\n", ("b",)) == 3


def test_a_value_of_many_lines_is_found_at_its_first() -> None:
    text = "a = 1\nb = [\n" + "1,\n" * 40 + "]\nc = 2\n"
    assert (line_of_key(text, ("b",)), line_of_key(text, ("c",))) == (2, 44)
