"""Attacks that are made up until somebody stops it: `make fuzz`. On a failure, prints the attack and its seed.

    python -m support.frame_fuzzer [--seconds N] [--seed N]

With a seed, the attacks of that seed alone are played again.
"""

import argparse
import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Iterator

import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from support.hostile_frames import ATTACKS, Attack
from support.hostile_lab import Lab, hostile_lab

ATTACKS_PER_SEED = 300


class OutOfTime(BaseException):
    """The time that was given is over."""


def fuzz(runner: asyncio.Runner, lab: Lab, number: int, ends_at: float) -> None:
    """Play the attacks of one seed. Raises what an attack that broke a promise raised."""

    @seed(number)
    @settings(
        max_examples=ATTACKS_PER_SEED,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(attack=ATTACKS)
    def attacked(attack: Attack) -> None:
        if time.monotonic() > ends_at:
            raise OutOfTime
        runner.run(lab.attack(attack))

    attacked()
    runner.run(lab.honest_run())


def main() -> int:
    """Fuzz; 0 when stopped without a failure, 1 after one."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Let hostile workers loose on a host.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; else on Ctrl-C")
    parser.add_argument("--seed", type=int, help="play the attacks of this seed only")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds: Iterator[int] = (
        itertools.count(time.time_ns() // 1_000_000) if options.seed is None else iter([options.seed])
    )
    began = time.monotonic()
    with asyncio.Runner() as runner:
        opening = hostile_lab()
        lab = runner.run(opening.__aenter__())
        number = 0
        try:
            for number in seeds:
                fuzz(runner, lab, number, began + options.seconds)
                _tell(lab, began, number)
        except (KeyboardInterrupt, OutOfTime):
            _tell(lab, began, number)
        except BaseException:
            sys.stderr.write(f"\nseed {number} found this; play it again with FUZZ_SEED={number} make fuzz\n\n")
            raise
        runner.run(opening.__aexit__(None, None, None))
    return 0


def _tell(lab: Lab, began: float, number: int) -> None:
    seconds = time.monotonic() - began
    rate = f"{lab.cases} attacks in {seconds:.0f} s, {lab.cases / seconds:.0f}/s"
    held = f"longest hold {lab.longest_hold_seconds * 1e3:.0f} ms, memory {lab.memory_bytes() // 2**20} MiB"
    sys.stdout.write(f"{rate}; {held}; last seed {number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
