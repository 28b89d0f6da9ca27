"""The options of ``tidebox.run``, as editors and type checkers see them."""

from __future__ import annotations

import inspect
from dataclasses import fields

from tidebox.embedded import RunOptions, run_on
from tidebox.model.limits import Limits


def test_every_option_is_typed_and_no_other() -> None:
    known = inspect.signature(run_on).parameters.values()
    options = {parameter.name for parameter in known if parameter.kind is parameter.KEYWORD_ONLY}
    assert RunOptions.__annotations__.keys() == options | {limit.name for limit in fields(Limits)}
