"""What a deployment says about a program to start: its arguments and its variables, checked before anything runs."""

from collections.abc import Collection, Mapping, Sequence

from loopwarden.providers.program import absolute_name


def checked_argv(argv: Sequence[str], placeholders: Collection[str] = ()) -> tuple[str, ...]:
    """A program and its arguments, the program named so that no workspace changes its meaning. Raises ValueError.

    `placeholders` are arguments that stand for something else, which no program can be called.
    """
    if isinstance(argv, str) or not argv:
        raise ValueError("a command is a list of a program and its arguments; it needs at least the program")
    first, *rest = (_checked_text(argument, "an argument of the command") for argument in argv)
    if not first.strip() or first in placeholders:
        raise ValueError(f"a command begins with its program, not with {first!r}")
    return (absolute_name(first), *rest)


def checked_variables(variables: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables to add. Raises ValueError, which names the variable and never its value."""
    return {
        _checked_name(name): _checked_text(value, f"the variable {name}") for name, value in (variables or {}).items()
    }


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of environment variables. Raises ValueError."""
    return tuple(_checked_name(name) for name in names)


def _checked_text(text: object, what: str) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{what} must be text without a zero character")
    return text


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of an environment variable")
    return name
