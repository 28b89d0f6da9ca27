"""Fetches the archives that a lock names: each is as small as it must be, and has the digest it must have."""

from __future__ import annotations

import base64
import hashlib
import netrc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidebox.errors import FetchFailed, InvalidPackage
from tidebox.runtime.layers import Locked
from tidebox.runtime.packaging.tools import Stop

if TYPE_CHECKING:
    import httpx2

_AT_ONCE = 4
_CHUNK = 1 << 18
_TRIES = 3
_PAUSE_SECONDS = 0.5
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")


class Budget:
    """The number of bytes that may still come, for all archives together; counted by several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.used = 0

    def take(self, count: int, package: str) -> None:
        """Count bytes; raises ``InvalidPackage`` where there are too many."""
        with self._lock:
            self.used += count
        if self.used > self._most:
            raise too_large(package, self._most)


def too_large(packages: str, most: int) -> InvalidPackage:
    """The error for packages of which more would be fetched than may be."""
    return InvalidPackage(
        f"with {packages} the packages are larger than {most} bytes to fetch (SANDBOX_PACKAGE_MAX_MB)",
        field="packages",
        package=packages,
        limit=most,
    )


def fetch_all(
    packages: Sequence[Locked],
    directory: Path,
    environment: Mapping[str, str],
    stop: Stop,
    *,
    max_bytes: int,
    progress: Callable[[int], None],
) -> list[Path]:
    """The archives of ``packages``, in their order, in ``directory``; ``progress`` is told the bytes so far."""
    # It comes with a lot, and not everybody asks for packages.
    import httpx2

    budget = Budget(max_bytes)
    failed = threading.Event()

    def check() -> None:
        stop.check()
        if failed.is_set():
            raise FetchFailed("another package could not be fetched", step="packages")

    with (
        httpx2.Client(follow_redirects=True, timeout=httpx2.Timeout(30.0), trust_env=True) as client,
        ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch") as pool,
    ):

        def fetch(number: int, package: Locked) -> Path:
            target = directory / f"{number}.archive"
            for attempt in range(_TRIES):
                try:
                    with _bytes_of(client, package, environment) as chunks:
                        _write(target, chunks, package, budget, check, progress)
                    return target
                except httpx2.HTTPError as error:
                    refused = isinstance(error, httpx2.HTTPStatusError) and error.response.status_code < 500
                    if refused or attempt == _TRIES - 1:
                        raise FetchFailed(_failure(package, error), step="packages", package=package.name) from error
                check()
                time.sleep(_PAUSE_SECONDS * 2**attempt)
            raise AssertionError

        futures = [pool.submit(fetch, number, package) for number, package in enumerate(packages)]
        try:
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            failed.set()
            for future in futures:
                future.cancel()
            raise


def _failure(package: Locked, error: Exception) -> str:
    import httpx2

    if isinstance(error, httpx2.HTTPStatusError):
        return f"{package.shown} could not be fetched: the index answered {error.response.status_code}"
    return f"{package.shown} could not be fetched: {type(error).__name__}"


@contextmanager
def _bytes_of(client: httpx2.Client, package: Locked, environment: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
    url = urlsplit(package.source)
    if url.scheme == "file":
        with open(unquote(url.path), "rb") as file:
            yield iter(lambda: file.read(_CHUNK), b"")
        return
    if url.scheme not in ("http", "https"):
        raise FetchFailed(f"{package.shown} is at a place that is not fetched from", step="packages")
    headers = {"Accept-Encoding": "identity"}
    if (credentials := _credentials(package.source, environment)) is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(":".join(credentials).encode()).decode()
    with client.stream("GET", package.source, headers=headers) as response:
        response.raise_for_status()
        yield response.iter_bytes(_CHUNK)


def _credentials(url: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password for the index that an archive is of: as its URL in uv's settings has them, or from netrc."""
    wanted = urlsplit(url)
    for variable in _INDEX_VARIABLES:
        for text in environment.get(variable, "").split():
            index = urlsplit(text.rpartition("=")[2] if "://" not in text.partition("=")[0] else text)
            if (index.scheme, index.hostname, index.port) == (wanted.scheme, wanted.hostname, wanted.port) and (
                index.username is not None
            ):
                return unquote(index.username), unquote(index.password or "")
    path = environment.get("NETRC") or os.path.join(environment.get("HOME", "/nonexistent"), ".netrc")
    try:
        found = netrc.netrc(path).authenticators(wanted.hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2] or "") if found is not None else None


def _write(
    target: Path,
    chunks: Iterator[bytes],
    package: Locked,
    budget: Budget,
    check: Callable[[], None],
    progress: Callable[[int], None],
) -> None:
    digest = digest_of(package)
    with target.open("wb") as file:
        for chunk in chunks:
            check()
            budget.take(len(chunk), package.shown)
            digest.update(chunk)
            file.write(chunk)
            progress(budget.used)
    check_digest(package, digest)


def digest_of(package: Locked) -> hashlib._Hash:
    """A digest of the kind that the package's lock has."""
    return hashlib.new(package.digest.partition(":")[0])


def check_digest(package: Locked, digest: hashlib._Hash) -> None:
    """Refuse an archive that is not the one of the lock."""
    if digest.hexdigest() != package.digest.partition(":")[2]:
        raise FetchFailed(
            f"what came for {package.shown} is not what the lock says: it is damaged, or was changed",
            step="packages",
            package=package.name,
        )
