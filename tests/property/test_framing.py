"""Frames survive any split of the bytes, and nothing else does."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_engine.framing import FrameError, FrameReader, frame

PAYLOADS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


@given(payloads=PAYLOADS, data=st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(payloads: list[bytes], data: st.DataObject) -> None:
    """However a stream is cut, the same payloads come out in order, and nothing is left over."""
    stream = b"".join(frame(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader(300)
    seen = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[begin:end])
        while (payload := reader.next_frame()) is not None:
            seen.append(payload)
    assert seen == payloads
    assert reader.is_empty


@given(size=st.integers(0, 2**32 - 1), rest=st.binary(max_size=20))
def test_a_length_outside_the_cap_is_refused_before_its_payload_came(size: int, rest: bytes) -> None:
    """The header alone decides."""
    reader = FrameReader(1000)
    reader.feed(struct.pack(">I", size) + rest)
    if 1 <= size <= 1000:
        assert reader.next_frame() == (rest[:size] if len(rest) >= size else None)
    else:
        with pytest.raises(FrameError):
            reader.next_frame()
