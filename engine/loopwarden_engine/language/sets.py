"""Sets and dict views that iterate in insertion order, whatever is in them.

CPython's own sets iterate by hash, and the hash of a function or of an instance is its address: two runs of the same
script would take different paths. Scripts get these classes under the names `set` and `frozenset`; set literals and
set comprehensions are rewritten to them; `d.keys()` and `d.items()` give the views below, because set operators on
CPython's views make real sets.

Where Python leaves the choice open: a result keeps the order of its left operand, then that of the right one, and
`pop()` takes the element that was added last.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Self


class OrderedSetBase:
    """What `set` and `frozenset` share. Elements are the keys of a dict, in insertion order."""

    __slots__ = ("_items",)
    _items: dict[Any, Any]

    def __init__(self, iterable: Iterable[object] = (), /) -> None:
        self._items = dict.fromkeys(iterable)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        return iter(self._items)

    def __contains__(self, element: object) -> bool:
        try:
            return element in self._items
        except TypeError:
            if isinstance(element, OrderedSet):  # as in Python: a set is looked up as the frozenset it would make
                return OrderedFrozenSet(element) in self._items
            raise

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        return len(self) == len(other) and all(element in other for element in self)

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {type(self).__name__!r}")

    def __le__(self, other: object) -> bool:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        return len(self) <= len(other) and all(element in other for element in self)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        return len(self) < len(other) and all(element in other for element in self)

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        return len(self) >= len(other) and all(element in self for element in other)

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        return len(self) > len(other) and all(element in self for element in other)

    def __and__(self, other: object) -> "OrderedSetBase":
        return self.intersection(other) if isinstance(other, OrderedSetBase) else NotImplemented

    def __or__(self, other: object) -> "OrderedSetBase":
        return self.union(other) if isinstance(other, OrderedSetBase) else NotImplemented

    def __sub__(self, other: object) -> "OrderedSetBase":
        return self.difference(other) if isinstance(other, OrderedSetBase) else NotImplemented

    def __xor__(self, other: object) -> "OrderedSetBase":
        return self.symmetric_difference(other) if isinstance(other, OrderedSetBase) else NotImplemented

    def copy(self) -> Self:
        return self.__class__(self)

    def isdisjoint(self, other: Iterable[object], /) -> bool:
        return not any(element in self for element in other)

    def issubset(self, other: Iterable[object], /) -> bool:
        return self <= _as_set(other)

    def issuperset(self, other: Iterable[object], /) -> bool:
        return all(element in self for element in other)

    def union(self, *others: Iterable[object]) -> Self:
        items = dict(self._items)
        for other in others:
            items.update(dict.fromkeys(other))
        return self.__class__(items)

    def intersection(self, *others: Iterable[object]) -> Self:
        kept = list(self)
        for other in others:
            held = _as_set(other)
            kept = [element for element in kept if element in held]
        return self.__class__(kept)

    def difference(self, *others: Iterable[object]) -> Self:
        items = dict(self._items)
        for other in others:
            for element in list(other):
                items.pop(element, None)
        return self.__class__(items)

    def symmetric_difference(self, other: Iterable[object], /) -> Self:
        held = OrderedSet(other)
        left = [element for element in self if element not in held]
        return self.__class__(left + [element for element in held if element not in self])


class OrderedSet(OrderedSetBase):
    """`set` of a script."""

    __slots__ = ()

    def __iand__(self, other: object) -> Self:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        self.intersection_update(other)
        return self

    def __ior__(self, other: object) -> Self:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        self.update(other)
        return self

    def __isub__(self, other: object) -> Self:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        self.difference_update(other)
        return self

    def __ixor__(self, other: object) -> Self:
        if not isinstance(other, OrderedSetBase):
            return NotImplemented
        self.symmetric_difference_update(other)
        return self

    def add(self, element: object, /) -> None:
        self._items[element] = None

    def discard(self, element: object, /) -> None:
        self._items.pop(element, None)

    def remove(self, element: object, /) -> None:
        del self._items[element]

    def pop(self) -> object:
        if not self._items:
            raise KeyError("pop from an empty set")
        return self._items.popitem()[0]

    def clear(self) -> None:
        self._items.clear()

    def update(self, *others: Iterable[object]) -> None:
        for other in others:
            self._items.update(dict.fromkeys(other))

    # The next three change the dict in place: an iterator over it must notice.
    def intersection_update(self, *others: Iterable[object]) -> None:
        kept = self.intersection(*others)
        for element in [element for element in self._items if element not in kept]:
            del self._items[element]

    def difference_update(self, *others: Iterable[object]) -> None:
        for other in others:
            for element in list(other):
                self._items.pop(element, None)

    def symmetric_difference_update(self, other: Iterable[object], /) -> None:
        for element in OrderedSet(other):
            if element in self._items:
                del self._items[element]
            else:
                self._items[element] = None


class OrderedFrozenSet(OrderedSetBase):
    """`frozenset` of a script: hashable when its elements are."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(frozenset(self._items))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def copy(self) -> Self:
        return self


class KeysView(OrderedSetBase):
    """What `d.keys()` gives: a live view whose set operators make ordered sets, from any iterable."""

    __slots__ = ()

    def __init__(self, mapping: dict[Any, Any], /) -> None:
        self._items = mapping

    def __reversed__(self) -> Iterator[Any]:
        return iter(reversed(self._items))

    def __and__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(self) & OrderedSet(other)

    def __or__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(self) | OrderedSet(other)

    def __sub__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(self) - OrderedSet(other)

    def __xor__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(self) ^ OrderedSet(other)

    def __rand__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(other) & OrderedSet(self)

    def __ror__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(other) | OrderedSet(self)

    def __rsub__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(other) - OrderedSet(self)

    def __rxor__(self, other: Any) -> OrderedSetBase:
        return OrderedSet(other) ^ OrderedSet(self)


class ItemsView(KeysView):
    """What `d.items()` gives."""

    __slots__ = ()

    def __iter__(self) -> Iterator[object]:
        return iter(self._items.items())

    def __reversed__(self) -> Iterator[tuple[object, object]]:
        return reversed(self._items.items())

    def __contains__(self, element: Any) -> bool:
        return element in self._items.items()


# Scripts, and C code that writes messages, know these classes by Python's names.
for _kind, _name in {
    OrderedSet: "set",
    OrderedFrozenSet: "frozenset",
    KeysView: "dict_keys",
    ItemsView: "dict_items",
}.items():
    _kind.__name__ = _kind.__qualname__ = _name
    _kind.__module__ = "builtins"


def _as_set(iterable: Iterable[object]) -> OrderedSetBase:
    return iterable if isinstance(iterable, OrderedSetBase) else OrderedSet(iterable)
