"""Classes of a script: the metaclass that every class statement goes through, and the types with a stand-in."""

from collections.abc import Mapping
from typing import Final, cast

from .encoding import decode, encode
from .errors import EXCEPTION_BASES
from .text import repr_of, text_of


class ScriptClass(type):
    """Metaclass of every class a script makes. Bases are other script classes or built-in exceptions, at most one.

    The static check refuses built-in bases that are written by name; this one also sees bases that were computed.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> "ScriptClass":
        """Check the bases and make the class. Raises TypeError for a base that is not allowed."""
        if len(bases) > 1:
            raise TypeError(f"class {name} has more than one base: a script class inherits from one class")
        for base in bases:
            if type(base) is not ScriptClass and base not in EXCEPTION_BASES:
                raise TypeError(f"class {name} cannot inherit from {repr_of(base)}: only from classes of the script "
                                "and from built-in exceptions")  # fmt: skip
        # C code that prints an instance (none that we know of can be reached) must not find object.__repr__.
        namespace["__repr__"] = _instance_repr
        namespace["__str__"] = _instance_text
        return super().__new__(mcs, name, bases, namespace)

    def __repr__(cls) -> str:
        """Without the module."""
        return f"<class '{cls.__name__}'>"


def _instance_repr(instance: object) -> str:
    return repr_of(instance)


def _instance_text(instance: object) -> str:
    return text_of(instance)


class _StandIn(type):
    """Metaclass of `str` and `bytes` as scripts see them: making a value goes through our text, the rest is the type.

    `isinstance`, `issubclass` and `|` work as with the real type; `str.upper` and the like are read by the attribute
    guard.
    """

    real: type

    def __instancecheck__(cls, instance: object) -> bool:
        """As the real type does it."""
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        """As the real type does it; a stand-in is also a subclass of itself."""
        return subclass is cls or issubclass(subclass, cls.real)

    def __repr__(cls) -> str:
        """As the real type shows itself."""
        return f"<class '{cls.__name__}'>"


class _TextMeta(_StandIn):
    def __call__(cls, value: object = "", /, *arguments: str, **options: str) -> str:
        """`str(value)`, or `str(data, encoding, errors)`."""
        if type(value) is bytes and (arguments or options):
            return decode(value, *arguments, **options)
        if arguments or options:
            raise TypeError(f"decoding to str: need bytes, {type(value).__name__} found")
        return text_of(value)


class _BytesMeta(_StandIn):
    def __call__(cls, value: object = b"", /, *arguments: str, **options: str) -> bytes:
        """`bytes(value)`, or `bytes(text, encoding, errors)`."""
        if type(value) is str:
            if not (arguments or options):
                raise TypeError("string argument without an encoding")
            return encode(value, *arguments, **options)
        if arguments or options:
            raise TypeError("encoding without a string argument")
        return bytes(cast("list[int]", value))


class ScriptStr(metaclass=_TextMeta):
    """`str` of a script."""

    __slots__ = ()
    real = str


class ScriptBytes(metaclass=_BytesMeta):
    """`bytes` of a script."""

    __slots__ = ()
    real = bytes


STAND_INS: Final[Mapping[type, type]] = {ScriptStr: str, ScriptBytes: bytes}
for _stand_in, _real in STAND_INS.items():
    _stand_in.__name__ = _stand_in.__qualname__ = _real.__name__
