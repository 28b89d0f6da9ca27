"""The spawner's first lines: run as a script by the interpreter that boxes will show.

Nothing is imported before the interpreter's pristine state has been noted: a warm Python cell must look as if it had
just been started.
"""

import sys

_BARE_MODULES = frozenset(sys.modules)
_BARE_PATH = tuple(sys.path[1:])
sys.path[:] = [*_BARE_PATH, __file__.rpartition("/tidebox/")[0]]

from tidebox.spawner import main, warm  # noqa: E402

warm.capture(_BARE_MODULES, _BARE_PATH)
main.main(int(sys.argv[1]))
