"""What a name can hold, as far as the analysis tells things apart: by the place in the text that makes them."""

import ast
from dataclasses import dataclass
from typing import Final, TypeAlias

from .scopes import FunctionNode


@dataclass(frozen=True, slots=True)
class Made:
    """Every object that an expression makes anew. `part` tells inner ones apart (the pairs of `enumerate`)."""

    node: ast.AST
    part: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the script."""

    node: FunctionNode


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the script."""

    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class Instance:
    """Every instance of a class of the script."""

    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in function or type; or a member of a module that scripts can import (`json.dumps`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Hook:
    """One of the five hooks."""

    name: str


@dataclass(frozen=True, slots=True)
class Module:
    """What `import` gives."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """The three below."""

    name: str


ARGS: Final = Special("args")
"""The argument of `main`, and everything in it that is a list or dict."""
SCALAR: Final = Special("scalar")
"""A text, a number, or anything else that cannot be changed and holds nothing."""
ELSEWHERE: Final = Special("elsewhere")
"""Anything that went through code that is not followed. What goes there is told apart no longer."""

Thing: TypeAlias = Made | Function | Class | Instance | Builtin | Hook | Module | Special
Things: TypeAlias = frozenset[Thing]
NOTHING: Final[Things] = frozenset()
PLAIN: Final[Things] = frozenset({SCALAR})
