"""The file by which an operator adds languages (``SANDBOX_LANGUAGES``): tables in, checked languages out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from re import _constants, _parser
from types import MappingProxyType
from typing import Any

from tidebox.errors import InvalidRequest
from tidebox.model.languages import BUILT_IN, PLACES, Language, Languages, places_in

_NAME = re.compile(r"[a-z][a-z0-9+#_-]{0,31}\Z")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,255}\Z")

# Anything but a place, and not what runs in boxes keeps for its own.
_COMMAND = re.compile(r"(?!tidebox:)[A-Za-z0-9_./+-]{1,255}\Z")
_REPETITIONS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_ENDLESS = 100

_TEXTS = frozenset({"aliases", "suffixes", "needs", "run", "compile", "version", "main"})
_FREE = frozenset({"name", "cell", "evaluate", "recipe"})
"""Fields that are not the operator's to set: a name is a table's, and the others stand for what is built in."""
_FORMS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "aliases": (_NAME, "a name like lua"),
        "suffixes": (_SUFFIX, "a suffix like .lua"),
        "needs": (_FILE, "the name of a command"),
    }
)


def read_languages(document: Mapping[str, Any], built_in: Languages = BUILT_IN) -> Languages:
    """The languages that are built in and those of an operator's file; raises ``InvalidRequest`` naming the field.

    One of a built-in name takes its place.
    """
    unknown = sorted(set(document) - {"languages"})
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: there are only tables [languages.NAME]", field=unknown[0])
    tables = document.get("languages", {})
    if not isinstance(tables, Mapping):
        raise InvalidRequest("languages: must be tables [languages.NAME]", field="languages")
    own = [_read(name, table) for name, table in tables.items()]
    names = {language.name for language in own}
    found = [*(language for language in built_in if language.name not in names), *own]
    taken: dict[str, str] = {}
    for language in found:
        for name in (language.name, *language.aliases, *language.suffixes):
            other = taken.setdefault(name, language.name)
            if other != language.name:
                what = "a suffix" if name.startswith(".") else "a name"
                raise InvalidRequest(
                    f"languages.{language.name}: {name!r} is {what} of {other}", field=f"languages.{language.name}"
                )
    return Languages(found)


def _read(name: str, table: Any) -> Language:
    place = f"languages.{name}"
    if not _NAME.match(name):
        raise InvalidRequest(f"{place}: a language is called like lua or c++", field=place)
    if not isinstance(table, Mapping):
        raise InvalidRequest(f"{place}: must be a table", field=place)
    known = {item.name for item in fields(Language)} - _FREE
    values: dict[str, Any] = {"name": name}
    for key, value in table.items():
        if key not in known:
            raise InvalidRequest(
                f"{place}.{key}: there is no such field (known: {', '.join(sorted(known))})", field=f"{place}.{key}"
            )
        values[key] = _value(f"{place}.{key}", key, value)
    for key in ("file", "run"):
        if not values.get(key):
            raise InvalidRequest(f"{place}.{key}: is missing", field=f"{place}.{key}")
    compiled = bool(values.get("compile"))
    if values.get("executes") and not compiled:
        field = f"{place}.executes"
        raise InvalidRequest(f"{field}: is of what a compiler makes, and there is no compile", field=field)
    words = {"run": values["run"], "env": [item for _, item in values.get("env", ())]}
    for key in words if not compiled else ():
        if any("out" in places_in(word) for word in words[key]):
            raise InvalidRequest(
                f"{place}.{key}: {{out}} is where a compiler writes, and there is no compile", field=f"{place}.{key}"
            )
    first = (values.get("compile") or values["run"])[0]
    if not _COMMAND.match(first):
        key = "compile" if compiled else "run"
        raise InvalidRequest(f"{place}.{key}: must begin with the name of a command", field=f"{place}.{key}")
    values.setdefault("needs", (first,))
    values.setdefault("version", (first, "--version"))
    if values.get("main") and not values.get("suffixes"):
        raise InvalidRequest(f"{place}.suffixes: is missing, and main needs one", field=f"{place}.suffixes")
    return Language(**values)


def _value(place: str, key: str, value: Any) -> Any:
    def wrong(what: str) -> InvalidRequest:
        return InvalidRequest(f"{place}: must be {what}", field=place)

    if key in _TEXTS:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise wrong("a list of texts")
        if any("\0" in item for item in value):
            raise wrong("without NUL characters")
        form, example = _FORMS.get(key, (None, ""))
        if form is not None and not all(form.match(item) for item in value):
            raise wrong(f"a list, each {example}")
        if key in ("run", "compile"):
            _check_places(place, value)
        if key == "version" and any(map(places_in, value)):
            raise wrong("without places: it has no file")
        for item in value if key == "main" else ():
            _check_pattern(place, item, groups=1)
        return tuple(value)
    if key == "env":
        if not isinstance(value, Mapping) or not all(
            _VARIABLE.match(name) and isinstance(item, str) and "\0" not in item for name, item in value.items()
        ):
            raise wrong("a table of variables")
        _check_places(place, value.values())
        return tuple(value.items())
    if key == "executes":
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    if not isinstance(value, str):
        raise wrong("a text")
    if key == "file" and not _FILE.match(value):
        raise wrong("a file name like main.lua")
    if key == "image" and not _IMAGE.match(value):
        raise wrong("the name of an image")
    if key == "packages" and value not in ("", "python", "node"):
        raise wrong("python or node")
    if key == "diagnostic":
        _check_pattern(place, value, names={"file", "line"})
    return value


def _check_places(place: str, words: Iterable[str]) -> None:
    for word in words:
        for found in places_in(word):
            if found not in PLACES:
                known = ", ".join(f"{{{name}}}" for name in PLACES)
                raise InvalidRequest(f"{place}: there is no {{{found}}} (known: {known})", field=place)


def _check_pattern(place: str, pattern: str, *, groups: int = 0, names: Iterable[str] = ()) -> None:
    try:
        found = re.compile(pattern)
        endless = _repeats(_parser.parse(pattern))
    except (re.error, OverflowError) as error:
        raise InvalidRequest(f"{place}: not a pattern: {error}", field=place) from None
    except RecursionError:
        raise InvalidRequest(f"{place}: not a pattern: it is nested too deeply", field=place) from None
    if endless:
        # One line of a stranger would keep the server busy for good.
        raise InvalidRequest(f"{place}: repeats what itself repeats; some lines would take forever", field=place)
    if found.groups < groups or not set(names) <= set(found.groupindex):
        needed = " and ".join(names) if names else "one"
        raise InvalidRequest(f"{place}: the pattern must have groups: {needed}", field=place)


def _repeats(parsed: Any, *, within: bool = False) -> bool:
    """Whether something without an end is repeated without an end: the ways to match that are too many to try."""
    if isinstance(parsed, tuple) and len(parsed) == 2 and parsed[0] in _REPETITIONS:
        _, most, repeated = parsed[1]
        endless = most >= _ENDLESS
        return (endless and within) or _repeats(repeated, within=within or endless)
    if isinstance(parsed, tuple | list | _parser.SubPattern):
        return any(_repeats(part, within=within) for part in parsed)
    return False
