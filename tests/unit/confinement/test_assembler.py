"""The BPF assembler refuses programs that the kernel would misread."""

import pytest

from loopwarden_engine.confinement.bpf import JUMP_IF_EQUAL, LOAD_WORD, RETURN, Assembler


def test_a_jump_goes_to_its_label_and_falls_through_without_one() -> None:
    assembler = Assembler()
    assembler.add(LOAD_WORD, 0)
    assembler.add(JUMP_IF_EQUAL, 7, if_true="yes")
    assembler.add(RETURN, 1)
    assembler.label("yes")
    assembler.add(RETURN, 2)
    assert assembler.assemble() == bytes.fromhex("2000000000000000 1500010007000000 0600000001000000 0600000002000000")


def test_an_unknown_label_is_refused() -> None:
    assembler = Assembler()
    assembler.add(JUMP_IF_EQUAL, 0, if_true="nowhere")
    with pytest.raises(ValueError, match="label 'nowhere' is not defined"):
        assembler.assemble()


def test_a_label_cannot_be_defined_twice() -> None:
    assembler = Assembler()
    assembler.label("here")
    with pytest.raises(ValueError, match="label 'here' is defined twice"):
        assembler.label("here")


def test_a_jump_backwards_is_refused() -> None:
    assembler = Assembler()
    assembler.label("start")
    assembler.add(JUMP_IF_EQUAL, 0, if_true="start")
    with pytest.raises(ValueError, match="out of reach"):
        assembler.assemble()


def test_a_jump_of_256_instructions_is_refused_and_one_of_255_is_not() -> None:
    for distance, fits in ((255, True), (256, False)):
        assembler = Assembler()
        assembler.add(JUMP_IF_EQUAL, 0, if_true="end")
        for _ in range(distance):
            assembler.add(RETURN, 0)
        assembler.label("end")
        assembler.add(RETURN, 0)
        if fits:
            assert assembler.assemble()[2] == 255
        else:
            with pytest.raises(ValueError, match="out of reach"):
                assembler.assemble()
