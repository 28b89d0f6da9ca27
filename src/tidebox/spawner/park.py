"""Parks a Python that is not the spawner's own: ``python3 /.tidebox/park.py``, beside the modules the two share."""

import sys

_BARE_MODULES = frozenset(sys.modules)
_HERE, *_BARE_PATH = sys.path
sys.path[:] = [*_BARE_PATH, _HERE]

from tidebox.spawner import warm  # noqa: E402

warm.capture(_BARE_MODULES, _BARE_PATH)
warm.park([])
