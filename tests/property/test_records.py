"""The reader of records: the same outcome however the stream is cut, and nothing that is fatal to it."""

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden.providers import records
from loopwarden.providers.configured import make_dialect
from loopwarden.providers.dialect import Ask, ProgramEnd, ProgramOptions, Verdict
from loopwarden.providers.records import PLAIN_TAIL_BYTES, LineCounts, RecordReader
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject
from support.replay import PROGRAMS, recordings

RECORDINGS = {
    f"{program}/{scenario}": recording for program in PROGRAMS for scenario, recording in recordings(program).items()
}
STREAMS = {name: recording.stdout for name, recording in RECORDINGS.items()}
ODD_PIECES = [
    b'{"a": 1}', b'{"text": "\xc3\xa9\xf0\x9f\x98\x80"}', b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\xc3", b"\xff",
    b" ", b"{", b"}", b'{"a": NaN}', b"[1, 2]", b"17", b"null", b"plain words", b"\0", b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
]  # fmt: skip


def read(pieces: Sequence[bytes]) -> tuple[list[JsonObject], LineCounts, str]:
    reader = RecordReader()
    found = [record for piece in pieces for record in reader.feed(piece)]
    return found + reader.finish(), reader.counts, reader.plain_output


def conclude(name: str, pieces: Sequence[bytes]) -> tuple[Verdict, Usage | None]:
    """What the dialect of a recording makes of it."""
    recording = RECORDINGS[name]
    dialect = make_dialect(recording.program)
    reading = dialect.reading(
        Ask(
            prompt="replay", schema=None, schema_file=None, model=None, workspace=Path("/workspace"),
            home=Path("/home"), max_cost_usd=None, is_root=False, options=ProgramOptions(),
        )
    )  # fmt: skip
    found, _, plain_output = read(pieces)
    for record in found:
        reading.take(record)
    end = recording.end
    verdict = reading.conclude(
        ProgramEnd(
            exit=end if end >= 0 else None,
            signal=-end if end < 0 else None,
            is_cancelled=False,
            errors=recording.stderr.decode(),
            plain_output=plain_output,
        )
    )
    return verdict, reading.usage


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted(place % (len(stream) + 1) for place in places)
    return [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(min_value=0, max_value=2**20), max_size=40))
def test_a_recorded_stream_reads_the_same_however_it_is_cut(name: str, places: list[int]) -> None:
    stream = STREAMS[name]
    assert read(cut(stream, places)) == read([stream])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(min_value=0, max_value=2**20), max_size=40))
def test_a_recorded_stream_has_the_same_outcome_however_it_is_cut(name: str, places: list[int]) -> None:
    stream = STREAMS[name]
    assert conclude(name, cut(stream, places)) == conclude(name, [stream])


@pytest.mark.parametrize("size", [1, 7])
def test_a_recorded_stream_reads_the_same_in_small_pieces(size: int) -> None:
    for stream in STREAMS.values():
        assert read([stream[at : at + size] for at in range(0, len(stream), size)]) == read([stream])


def test_the_records_of_a_recorded_stream_are_those_of_its_lines_that_are_objects() -> None:
    def objects(stream: bytes) -> Iterator[JsonObject]:
        for line in stream.decode().split("\n"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value
                elif isinstance(value, list):  # one program prints all of its records as one list, when asked to
                    yield from value

    for name, stream in STREAMS.items():
        assert read([stream])[0] == list(objects(stream)), name


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ODD_PIECES), max_size=20), st.lists(st.integers(min_value=0), max_size=20))
def test_odd_bytes_read_the_same_however_they_are_cut(pieces: list[bytes], places: list[int]) -> None:
    stream = b"".join(pieces)
    assert read(cut(stream, places)) == read([stream])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(min_value=0), max_size=20))
def test_any_bytes_read_the_same_however_they_are_cut(stream: bytes, places: list[int]) -> None:
    assert read(cut(stream, places)) == read([stream])


@pytest.mark.parametrize(
    ("stream", "found", "counts"),
    [
        (b"", [], {}),
        (b'{"a": 1}', [{"a": 1}], {"records": 1}),
        (b'\xef\xbb\xbf{"a": 1}\r\n\n \t\r\n{"b": 2}\n', [{"a": 1}, {"b": 2}],
         {"records": 2, "boms": 1, "crlf": 2, "blank": 2}),
        (b'  {"a": 1}  \n', [{"a": 1}], {"records": 1}),
        (b'{"a": 1}{"a": 2}\n', [], {"broken": 1}),
        (b'{"a": NaN}\n{"a": Infinity}\n{"a": 1', [], {"broken": 3}),
        (b'[1]\n"x"\n-1\ntrue\nnull\nfalse\n[1\n', [], {"other_json": 6, "plain": 1}),
        (b"warning: old\nnot json\n", [], {"plain": 2}),
        (b'{"a": "\xff"}\n\xfe\n', [{"a": "�"}], {"records": 1, "plain": 1, "not_utf8": 2}),
        (b'{"a": ' + b"[" * 200_000 + b"\n", [], {"broken": 1}),
        (b"[" * 200_000 + b"\n", [], {"plain": 1}),
        (b'{"a": ' + b"9" * 10_000 + b"}\n", [], {"broken": 1}),
        (b'{"a": "\xe2\x80\xa8 \xc2\x85 \x0b"}\n', [], {"broken": 1}),
        (b'{"a": "\xe2\x80\xa8 \xc2\x85"}\n', [{"a": "\u2028 \x85"}], {"records": 1}),
    ],
)  # fmt: skip
def test_what_is_no_record_is_counted(stream: bytes, found: list[JsonObject], counts: dict[str, int]) -> None:
    assert read([stream])[:2] == (found, LineCounts(**counts))


@pytest.mark.parametrize("size", [1, 3, 99, 1000])
def test_a_line_that_is_too_long_is_left_out_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 100)
    fits = b'{"a": "' + b"x" * 91 + b'"}'
    stream = fits + b"\n" + b'{"b": "' + b"x" * 92 + b'"}\n{"c": 1}\n' + b"z" * 500
    assert len(fits) == 100
    found, counts, plain = read([stream[at : at + size] for at in range(0, len(stream), size)])
    assert found == [{"a": "x" * 91}, {"c": 1}]
    assert (counts, plain) == (LineCounts(records=2, long=2), "")


def test_a_line_that_is_too_long_does_not_pile_up() -> None:
    reader = RecordReader()
    for _ in range(40):
        assert reader.feed(b"x" * 1_000_000) == []
    assert len(reader._line) <= records.MAX_LINE_BYTES
    assert reader.feed(b'\n{"a": 1}\n') == [{"a": 1}]


def test_the_end_of_plain_text_is_kept() -> None:
    reader = RecordReader()
    numbers = random.Random(3)
    lines = [f"line {number} {'é' * numbers.randrange(60)}." for number in range(5000)]
    for line in lines:
        assert reader.feed(f'{line}\n{{"a": 1}}\n'.encode()) == [{"a": 1}]
    kept = reader.plain_output
    assert len(kept.encode()) <= PLAIN_TAIL_BYTES + 2
    assert "\n".join(lines).endswith(kept[1:-1])
    assert len(reader._plain) < 5 * PLAIN_TAIL_BYTES


def test_half_a_record_is_not_taken_for_plain_text() -> None:
    """What an agent says in its answer must not be read as an error message of its program."""
    assert read([b'{"text": "rate limit exceeded'])[2] == ""


def test_notes_say_what_was_not_read_as_it_was_meant() -> None:
    stream = b'\xef\xbb\xbf{"a": 1}\r\n\nwarning\nwarning\n[1]\n{"a": \n{"a": "\xff"}\n'
    assert read([stream])[1].notes() == (
        "its output held 2 lines of plain text",
        "its output held 1 line of JSON that is no object",
        "its output held 1 line of JSON that is broken",
        "its output held 1 line with bytes that are not UTF-8, which were replaced",
    )
