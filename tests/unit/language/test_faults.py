"""What is shown of an uncaught exception: total, bounded, no paths, no frames of ours."""

from typing import Any

from loopwarden_engine.language import describe_exception
from loopwarden_engine.language.faults import MAX_LINES, MAX_MESSAGE_CHARS


def test_lines_are_those_of_the_script_outermost_first(run: Any) -> None:
    """Frames of guards and of library code do not count."""
    source = (
        "import textwrap\ndef f(x):\n    return textwrap.wrap(x)\ndef main(args):\n    return [\n        f(5)\n    ]\n"
    )
    fault = run(source).fault
    assert (fault.type_name, fault.line, fault.lines) == ("TypeError", 3, [6, 3])
    assert fault.message == "text must be str, not int"


def test_the_line_of_an_augmented_assignment_is_its_own(run: Any) -> None:
    """Rewritten statements keep their place."""
    assert run("def main(args):\n    d = {}\n    d['k'] += 1\n").fault.line == 3
    assert run("def main(args):\n    x = '%d'\n    y = 1\n    x %= 'a'\n").fault.line == 4
    assert run("def main(args):\n    return (1 +\n        args.x)\n", 5).fault.line == 3


def test_a_deep_stack_keeps_its_first_and_last_lines(run: Any) -> None:
    """A recursion error does not make the report large."""
    fault = run("def f(n):\n    return f(n + 1)\ndef main(args):\n    return f(0)\n").fault
    assert fault.type_name == "RecursionError"
    assert len(fault.lines) == MAX_LINES
    assert fault.lines[0] == 4
    assert fault.line == 2


def test_a_long_message_is_cut_with_a_visible_mark() -> None:
    """4,000 characters, the mark included."""
    message = describe_exception(ValueError("x" * 100_000)).message
    assert len(message) == MAX_MESSAGE_CHARS
    assert message.endswith("… [cut]")


def test_a_lone_surrogate_is_replaced() -> None:
    """A message crosses to the host as JSON."""
    assert describe_exception(ValueError("a\ud800b")).message == "a?b"


def test_a_chain_of_any_length_is_described(run: Any) -> None:
    """Causes are not followed."""
    source = (
        "def main(args):\n    e = None\n    for i in range(20000):\n        try:\n"
        "            raise ValueError(i) from e\n"
        "        except ValueError as x:\n            e = x\n    raise e\n"
    )
    assert run(source).fault.message == "19999"


def test_describing_never_raises() -> None:
    """Not even for an exception that holds itself, or a value too deep for text."""
    error = ValueError()
    error.args = (error,)
    assert describe_exception(error).message == "[the message could not be shown]"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert describe_exception(ValueError(deep)).message == "[the message could not be shown]"


def test_without_a_frame_of_the_script_there_is_no_line() -> None:
    """The line is None, not a guess."""
    assert describe_exception(KeyError("k")) == ("KeyError", "'k'", None, [])
