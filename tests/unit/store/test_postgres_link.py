"""What a person reads when a Postgres store cannot be reached: host and database, never a password."""

import psycopg
import pytest

from loopwarden.store.errors import StoreError, StoreUnavailable
from loopwarden.store.postgres_link import connect, place_of, said_by

SECRET = "s3cr3t-pass"


@pytest.mark.parametrize(
    ("conninfo", "name"),
    [
        (f"postgresql://me:{SECRET}@db.example:5433/loops", "loops on db.example:5433"),
        (f"host=db.example dbname=loops password={SECRET}", "loops on db.example"),
        ("postgresql:///loops", "loops on the local socket"),
        ("hostaddr=127.0.0.1", "(default) on 127.0.0.1"),
    ],
)
def test_a_place_is_named_by_host_and_database(conninfo: str, name: str) -> None:
    place = place_of(conninfo)
    assert place.name == name
    assert SECRET not in repr(place)


@pytest.mark.parametrize("conninfo", [f"postgresql://me:{SECRET}@[/loops", f"pass word={SECRET}", f"nonsense={SECRET}"])
def test_an_address_that_cannot_be_read_is_refused_without_being_quoted(conninfo: str) -> None:
    with pytest.raises(StoreError) as refused:
        place_of(conninfo)
    assert str(refused.value) == (
        "the address of the Postgres store cannot be read; write it as postgresql://HOST/DATABASE"
    )
    assert refused.value.__cause__ is None


def test_a_server_that_is_not_there_is_said_to_be_out_of_reach() -> None:
    place = place_of(f"postgresql://me:{SECRET}@127.0.0.1:1/loops")
    with pytest.raises(psycopg.OperationalError) as lost:
        connect(place, search_path=("loopwarden",))
    said = said_by(place, lost.value)
    assert isinstance(said, StoreUnavailable)
    assert str(said).startswith("the database loops on 127.0.0.1:1 cannot be reached: ")
    assert SECRET not in str(said)


def test_a_password_in_the_words_of_a_server_is_not_repeated() -> None:
    place = place_of(f"postgresql://me:{SECRET}@db.example/loops")
    said = str(said_by(place, psycopg.OperationalError(f"tried {SECRET} and password={SECRET}x")))
    assert SECRET not in said
    assert "\n" not in said


def test_a_full_disk_says_what_to_do() -> None:
    said = said_by(place_of("postgresql://db.example/loops"), psycopg.errors.DiskFull("could not extend file"))
    assert isinstance(said, StoreUnavailable)
    assert str(said) == "the disk of the database loops on db.example is full: free space there, then ask again"


def test_a_standby_is_named_as_read_only() -> None:
    said = said_by(place_of("postgresql://db.example/loops"), psycopg.errors.ReadOnlySqlTransaction("cannot execute"))
    assert isinstance(said, StoreUnavailable)
    assert str(said) == "the database loops on db.example is read-only: name the server that takes writes"
