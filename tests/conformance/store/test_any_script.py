"""A claim for scripts of any name, under one contract: what hosts do for scripts that have none of their own."""

import pytest

from loopwarden.store.api import Store
from loopwarden.store.runs import ANY_SCRIPT
from support.store_lab import ALICE, new_run, wanted

PLAIN = "sha256:plain"


async def claimed(store: Store, scripts: dict[str, str]) -> list[str]:
    claims = await store.claim(ALICE, wanted(scripts=scripts), limit=10)
    return sorted(claim.row.run_id for claim in claims)


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        ({ANY_SCRIPT: PLAIN}, ["mine", "ralph-plain"]),
        ({ANY_SCRIPT: PLAIN, "ralph": "sha256:contract"}, ["mine", "ralph", "ralph-plain"]),
        ({"ralph": "sha256:contract"}, ["ralph"]),
        ({"zebra": "sha256:contract", ANY_SCRIPT: "sha256:other"}, []),
    ],
)
async def test_a_contract_for_any_script_fits_every_name(
    store: Store, scripts: dict[str, str], expected: list[str]
) -> None:
    await store.create(
        [
            new_run("mine", script="mine", contract_digest=PLAIN),
            new_run("ralph-plain", script="ralph", contract_digest=PLAIN),
            new_run("ralph", script="ralph"),
        ]
    )
    assert await claimed(store, scripts) == expected
