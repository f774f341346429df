"""Opening the store that the settings name."""

from loopwarden.failures import InvalidRequest, StoreRefused
from loopwarden.run_folder import RunFolderError, make_private_folder
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.errors import StoreError

_EXTRA = "loopwarden[postgres]"


async def open_store(settings: Settings) -> Store:
    """Open the store of the settings, on the event loop that runs. Who opens it closes it.

    Raises `InvalidRequest` when the settings want none or what it needs is not installed, `StoreRefused` when it
    cannot be opened.
    """
    store = settings.store
    try:
        match store.kind:
            case "none":
                raise InvalidRequest(
                    'this deployment has no store: the settings say url = "none" under [store]; '
                    "leave that out, or name a store there"
                )
            case "memory":
                from loopwarden.store.sqlite import open_memory  # noqa: PLC0415 -- only what is wanted is loaded

                return await open_memory()
            case "sqlite":
                from loopwarden.store.sqlite import open_sqlite  # noqa: PLC0415

                path = store.sqlite_path(settings.state_folder)
                if path.parent == settings.state_folder:
                    make_private_folder(settings.state_folder)
                return await open_sqlite(path)
            case "postgres":
                _refuse_missing_postgres()
                from loopwarden.store.postgres import open_postgres  # noqa: PLC0415

                return await open_postgres(store.url)
    except (StoreError, RunFolderError) as error:
        raise StoreRefused(str(error)) from None


def _refuse_missing_postgres() -> None:
    try:
        import procrastinate  # noqa: F401, PLC0415
        import psycopg  # noqa: F401, PLC0415
    except ImportError:
        raise InvalidRequest(
            f"the store of the settings is a Postgres database, and what speaks to one is not installed; "
            f"run `pip install '{_EXTRA}'`"
        ) from None
