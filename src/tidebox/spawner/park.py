"""Parks a Python that is not the spawner's own: ``python3 /.tidebox/park.py [MODULES]``, beside what the two share.

Modules that cannot be loaded ahead spoil the process that tried: it begins anew without them.
"""

import sys

_BARE_MODULES = frozenset(sys.modules)
_HERE, *_BARE_PATH = sys.path
sys.path[:] = [*_BARE_PATH, _HERE]

from posix import execv  # noqa: E402

from tidebox.spawner import warm  # noqa: E402

warm.capture(_BARE_MODULES, _BARE_PATH)
_modules = sys.argv[1].split(",") if len(sys.argv) > 1 else []
if _modules:
    from tidebox.spawner import handover

    _refused = warm.load(_modules, handover.load).get("refused")
    if _refused is not None:
        _left = [name for name in _modules if name != _refused]
        # As it was called: an interpreter finds its library by its name.
        execv(sys.executable, ["python3", __file__, *([",".join(_left)] if _left != _modules and _left else [])])
warm.park([])
