"""Publish and clear diagnostics: which run made them, and until when they stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lsprotocol import types

from tidebox.lsp.diagnostics.path_mapping import LocatedProblem, SourceLocation

SOURCE = "tidebox"
_MAX_COLUMN = 2**31 - 1
_MAX_RUNS = 200
"""Of so many different commands marks are kept."""

Publish = Callable[[str, list[types.Diagnostic]], None]
Key = tuple[str, tuple[str, ...]]
"""Document or folder of a run, and its command."""


class PublishedDiagnostics:
    """Diagnostics that the editor shows, by run. A run replaces those of the last run of the same command; a run of a
    whole document replaces those of all runs of it.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._of_runs: dict[Key, dict[str, list[types.Diagnostic]]] = {}

    def replace(self, key: Key, found: Mapping[str, list[types.Diagnostic]], *, whole: bool) -> None:
        """Publish the diagnostics of a run, as URI -> diagnostics, and clear those that it replaces."""
        ended = [each for each in self._of_runs if each == key or (whole and each[0] == key[0])]
        ended += [each for each in self._of_runs if each not in ended][: max(0, len(self._of_runs) - _MAX_RUNS)]
        touched = dict.fromkeys(uri for each in ended for uri in self._of_runs[each]) | dict.fromkeys(found)
        for each in ended:
            del self._of_runs[each]
        if found:
            self._of_runs[key] = dict(found)
        for uri in touched:
            self._publish(uri, [one for marks in self._of_runs.values() for one in marks.get(uri, ())])


def make_diagnostics(
    marks: Sequence[LocatedProblem],
    uri_of: Callable[[str], str],
    line_of: Callable[[str, int], str],
    *,
    code: str,
    link: str | None,
    run_id: str,
) -> dict[str, list[types.Diagnostic]]:
    """Convert located problems to diagnostics by URI; ``line_of`` gives the text of a line, to mark all of it."""
    found: dict[str, list[types.Diagnostic]] = {}
    for each in marks:
        related = [
            types.DiagnosticRelatedInformation(
                types.Location(uri_of(place.path), make_range(place, line_of(place.path, place.line))), message
            )
            for place, message in each.related
        ]
        diagnostic = types.Diagnostic(
            range=make_range(each.place, line_of(each.place.path, each.place.line)),
            message=each.message,
            severity=types.DiagnosticSeverity.Warning if each.warning else types.DiagnosticSeverity.Error,
            source=SOURCE,
            code=code,
            code_description=types.CodeDescription(link) if link else None,
            related_information=related or None,
            data={"run_id": run_id},
        )
        found.setdefault(uri_of(each.place.path), []).append(diagnostic)
    return found


def make_range(place: SourceLocation, text: str) -> types.Range:
    """Return the range of a line's text, from the known column on, in UTF-16 units as the protocol counts."""
    begin = len(text) - len(text.lstrip())
    if place.column is not None and begin <= place.column - 1 < len(text.rstrip()):
        begin = place.column - 1
    end = len(text.rstrip())
    line = place.line - 1
    return types.Range(
        types.Position(line, _units(text[:begin])), types.Position(line, max(_units(text[:end]), _units(text[:begin])))
    )


def _units(text: str) -> int:
    return min(len(text.encode("utf-16-le", "surrogatepass")) // 2, _MAX_COLUMN)
