"""Promise 9: whatever the order in which agents end, and wherever the host dies, a run goes on as it began.

The agents of `parallel` in `pipeline` answer in an order that is drawn by lot, one or several at a time; the host is
killed at a point that is drawn by lot; the run is taken over, in another order again.
"""

import random
from pathlib import Path

import pytest

from support.crash_host import Place
from support.crash_lab import KILLED, CrashLab, Found, judge, private
from support.crash_scenes import SCENES, Order

ORDERS = 200
IN_A_TEST = 10
SEAMS = {"append.handed": 55, "append.written": 55, "append.committed": 55, "send.before": 12, "send.after": 12,
         "read.after": 48, "ask.before": 23, "ask.logged": 23, "answer.given": 23, "answer.taken": 23}  # fmt: skip
"""How often each is passed, at the least."""


def order_of(found: Found) -> tuple[int, ...]:
    """The order in which the calls ended, by the structure of the script."""
    keys = {entry.seq: entry.key for entry in found.asked}
    return tuple(hash(keys[seq]) for seq in found.ended)


@pytest.mark.parametrize("first", range(0, ORDERS, IN_A_TEST))
def test_a_run_whose_agents_end_in_any_order_goes_on_as_it_began(
    first: int, crashes: CrashLab, swift_path: Path
) -> None:
    orders = set()
    for seed in range(first, first + IN_A_TEST):
        chance = random.Random(seed)
        seam = chance.choice(list(SEAMS))
        at = chance.randint(2, SEAMS[seam])
        place = Place(private(swift_path / str(seed)))
        ended = crashes.run(place, "nested", seam=seam, at=at, seed=seed, most=1 + seed % 3)
        try:
            assert ended == KILLED
            before = crashes.held(place)
            assert before is not None
            found = crashes.resumed(place, "nested", order=Order(seed, most=1 + seed % 4), replays=True)
            assert found is not None
            judge(place, SCENES["nested"], found, before=before, trace=crashes.trace("nested"), interruptions=1)
        except Exception as error:
            error.add_note(f"seed {seed}: killed at passage {at} of {seam}")
            raise
        orders.add(order_of(found))
    assert len(orders) == IN_A_TEST


def test_the_same_lot_gives_the_same_order(crashes: CrashLab, swift_path: Path) -> None:
    found = []
    for turn in range(2):
        place = Place(private(swift_path / str(turn)))
        assert crashes.run(place, "nested", seed=7) == 0
        held = crashes.held(place)
        assert held is not None
        found.append([one.entry.model_dump(exclude={"at", "run_id", "host", "seconds"}) for one in held.chained])
    assert found[0] == found[1]
