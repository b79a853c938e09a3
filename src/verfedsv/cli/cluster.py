"""The workers of a Dask scheduler as an executor."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from verfedsv._version import __version__
from verfedsv.errors import InputError, how_to_install

PATIENCE = "10s"
"""How long to wait for a scheduler."""


@contextmanager
def executor_of(address: str | None) -> Iterator[Executor | None]:
    """Yield an executor of the workers of a Dask scheduler; None if there is no address.

    Raises InputError if it cannot be reached, has no workers, or if these lack this version of the package.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"--dask needs distributed: {how_to_install('cluster')}") from None
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with 'dask scheduler', and pass the "
            "address that it prints, such as tcp://scheduler:8786"
        ) from None
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            raise InputError(f"the scheduler at {address} has no workers; start some with 'dask worker {address}'")
        for worker, found in client.run(_version, on_error="return").items():
            if found != __version__:
                has = f"has verfedsv {found}" if isinstance(found, str) else "lacks verfedsv"
                raise InputError(f"the worker {worker} {has}, this is {__version__}; install the same version on all")
        yield client.get_executor()


def _version() -> str:
    """Return the version of this package where this is called."""
    from verfedsv import __version__ as version

    return version
