"""The page of threats shows what the corpora hold, and every family has its words."""

import re
import tomllib

import pytest

from loopwarden_engine.attacks.calls import NUMBERS
from loopwarden_engine.attacks.catalogue import load_catalogue
from support.pages import between
from support.threats import ESCAPE, GENERATED, PAGE, PARTS, families_of

NAMED_CALL = re.compile(r"(?:call|errno_of)\('(\w+)'")


@pytest.mark.parametrize("name", GENERATED)
def test_the_page_of_threats_is_what_the_corpora_make_of_it(name: str) -> None:
    """After a change: `python -m support.threats` in the folder `tests`."""
    assert between(PAGE, name) == GENERATED[name]()


@pytest.mark.parametrize("part", PARTS)
def test_every_family_is_described_and_every_description_has_attacks(part: str) -> None:
    described = tomllib.loads((ESCAPE / "families" / f"{part}.toml").read_text(encoding="utf-8"))
    assert {family.name for family in families_of(part)} == set(described)
    assert all(family.tries and family.known_from for family in families_of(part))


def test_every_attack_names_its_source_and_is_plain_text() -> None:
    for attack in load_catalogue():
        assert attack.known_from.startswith(("CVE-", "class of attack: ")), attack.id
        assert f"{attack.id}{attack.family}{attack.known_from}{attack.goal}{attack.code}".isascii(), attack.id
        compile(attack.before + "\n" + attack.code, attack.id, "exec")


@pytest.mark.parametrize("machine", NUMBERS)
def test_every_call_that_an_attack_makes_has_a_number_on_both_machines(machine: str) -> None:
    named = {
        name
        for attack in load_catalogue()
        if attack.machine in (None, machine)
        for name in NAMED_CALL.findall(attack.before + attack.code)
    }
    assert named - set(NUMBERS[machine]) == set()
