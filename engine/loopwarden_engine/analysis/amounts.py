"""What an expression can come to: an exact value, something of a size, a number that is not above another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .formula import Node, Unknown
from .scopes import Scope, Variable


@dataclass(frozen=True, slots=True)
class Exact:
    """Exactly this value."""

    value: Node


@dataclass(frozen=True, slots=True)
class Sized:
    """Something with at most so many items."""

    count: Node


@dataclass(frozen=True, slots=True)
class AtMost:
    """An integer that is at most so large. `is_natural`: and not below 0."""

    count: Node
    is_natural: bool = False


Alternative: TypeAlias = Exact | Sized | AtMost
Alternatives: TypeAlias = tuple[Alternative, ...] | Unknown
Env: TypeAlias = Mapping[Variable, Alternatives]
"""What parameters of the functions around hold in one call of them. Those of functions called elsewhere are missing."""


def retained(env: Env, scope: Scope) -> Env:
    """What is still known in code that stands in `scope`."""
    around = set(map(id, scope.chain()))
    return {variable: given for variable, given in env.items() if id(variable.scope) in around}
