"""Which templates stand, and which of them are let go: images may be any number, and each has templates of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

MOST_TEMPLATES = 16
"""Number of templates that stand at once, beside those that boxes have: each is a few processes, some megabytes, and
holds its image's files."""


class Templates:
    """Names of templates, those that were used last at the end; each begins with the digest of its image."""

    def __init__(self, most: int = MOST_TEMPLATES) -> None:
        self.most = most
        self._standing: dict[str, None] = {}
        self._opening: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._standing

    def __iter__(self) -> Iterator[str]:
        return iter(self._standing)

    def __len__(self) -> int:
        return len(self._standing)

    def add(self, name: str) -> None:
        """One more stands."""
        self._standing[name] = None

    def remove(self, name: str) -> None:
        """One stands no more, if it did."""
        self._standing.pop(name, None)

    def clear(self) -> None:
        """All are gone."""
        self._standing.clear()

    def of_image(self, digest: str) -> bool:
        """Whether an image has any."""
        return any(name.startswith(digest) for name in self._standing)

    @contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """A box is being opened from a template, which may have to be started first."""
        self._opening[name] += 1
        try:
            yield
        finally:
            self._opening[name] -= 1
            if not self._opening[name]:
                del self._opening[name]
            if name in self._standing:
                self._standing[name] = self._standing.pop(name)

    def surplus(self, busy: Collection[str]) -> list[str]:
        """Those that are too many, of those that neither are ``busy``, because boxes have them, nor in use."""
        idle = [name for name in self._standing if name not in busy and name not in self._opening]
        return idle[: max(len(self._standing) - self.most, 0)]
