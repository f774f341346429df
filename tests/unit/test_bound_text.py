"""A bound in words stays short, whatever table of nodes a worker sends."""

from typing import Any

import pytest

from loopwarden.bound_text import bound_words
from loopwarden_engine.bound_form import MAX_NODES, MAX_OPERANDS

NAMES = 24


def wide_sum() -> tuple[list[list[Any]], int]:
    """Nodes, and the place of a sum of twenty products of twenty long names each."""
    nodes: list[list[Any]] = [["args"], *(["item", 0, "k" * 190 + str(number)] for number in range(NAMES))]
    first = len(nodes)
    nodes += [["items", 1 + number] for number in range(NAMES)]
    products = range(len(nodes), len(nodes) + 20)
    nodes += [["product", *(first + (start + step) % NAMES for step in range(20))] for start in range(20)]
    return [*nodes, ["sum", *products]], len(nodes)


@pytest.mark.parametrize("operation", ["sum", "product", "max", "min"])
@pytest.mark.parametrize("operands", [1, 2, 20, 500])
def test_a_table_that_describes_megabytes_of_text_is_left_out(operation: str, operands: int) -> None:
    nodes, place = wide_sum()
    room = MAX_OPERANDS - sum(len(node) - 1 for node in nodes)
    nodes += [[operation, *[place] * operands]] * min(MAX_NODES - len(nodes), room // operands)
    assert bound_words(nodes) == "…"


def test_what_a_script_may_say_is_shown_whole() -> None:
    """Many arguments, each of them used in several loops."""
    nodes: list[list[Any]] = [["args"], *(["item", 0, f"files{number}"] for number in range(12))]
    nodes += [["items", 1 + number] for number in range(12)]
    nodes.append(["sum", *range(13, 25)])
    assert bound_words(nodes) == " + ".join(f"len(args.files{number})" for number in range(12))
