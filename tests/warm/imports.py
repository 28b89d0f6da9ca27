# ruff: noqa: E501
"""Programs that import much: they must end alike whether or not what they import was loaded before they came."""

from __future__ import annotations

from tests.warm.runners import Case

_STATE = """
import sys
print(sorted(sys.modules), sys.meta_path, sys.path_hooks[1:], [type(f).__name__ for f in sys.meta_path])
import json, csv, re, dataclasses, asyncio, unittest, sqlite3, subprocess, http.server, logging, random, tempfile
print(list(sys.modules))
print([(name, sorted(vars(module))) for name, module in sys.modules.items() if name not in ("__main__", "sys")])
import signal, threading, warnings, os, locale
print([signal.getsignal(n) for n in range(1, 65)], [t.name for t in threading.enumerate()], threading.main_thread().native_id == os.getpid())
print(warnings.filters, sorted(os.environ.items()), sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task") == [str(os.getpid())])
print(json.__spec__, json.__loader__.path, json.__file__, json.__spec__._initializing, asyncio.__path__)
print(locale.setlocale(locale.LC_ALL), tempfile.tempdir, tempfile._name_sequence, sys.flags, globals().keys())
"""

_ALIVE = """
import asyncio, collections, concurrent.futures, contextlib, csv, dataclasses, datetime, decimal, io, json, logging, multiprocessing, queue, re, sqlite3, subprocess, threading, typing, unittest, urllib.request, http.server
async def work(n):
    await asyncio.sleep(0)
    return n * n
async def main():
    return await asyncio.gather(*map(work, range(5)))
print(asyncio.run(main()))
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    print(list(pool.map(len, ["a", "bb"])))
logging.basicConfig(format="%(levelname)s %(threadName)s %(message)s"); logging.getLogger("x").warning("told")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *a): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()); server.shutdown()
print(subprocess.run(["echo", "below"], capture_output=True).stdout, sqlite3.connect(":memory:").execute("select 1+1").fetchone())
class T(unittest.TestCase):
    def test(self): self.assertEqual(1, 1)
result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.defaultTestLoader.loadTestsFromTestCase(T)); print(result)
@dataclasses.dataclass
class D:
    a: int
    b: typing.Optional[str] = None
print(D(1), json.dumps(dataclasses.asdict(D(2))), re.sub("a+", "b", "caat"), decimal.Decimal("1.10") + 1, datetime.date(2024, 2, 29))
"""

_POOL = """
import multiprocessing, os
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(square, range(4)))
    print(multiprocessing.current_process().name, multiprocessing.process.ORIGINAL_DIR == os.getcwd())
"""

_FORK = """
import os, random, threading, sys
random.seed(3); before = random.getstate()
sys.stdout.flush()
if os.fork() == 0:
    print("child", random.getstate() == before, threading.active_count(), threading.main_thread().native_id == os.getpid()); sys.stdout.flush(); os._exit(0)
os.wait(); print("parent", random.getstate() == before)
"""

_AGAIN = """
import sys, json, importlib, logging
first = json
del sys.modules["json"]
import json
print(json is first, json.decoder is first.decoder)
print(importlib.reload(json) is json)
for name in [name for name in sys.modules if name.startswith("logging")]: del sys.modules[name]
import logging as other
print(other is logging, other.root is logging.root)
"""

_WATCHED = """
import sys
seen = []
def trace(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "<module>": seen.append(frame.f_globals["__name__"])
sys.settrace(trace)
import csv, argparse
sys.settrace(None)
print(seen)
class Finder:
    def find_spec(self, name, path=None, target=None): print("asked for", name, path is None)
sys.meta_path.insert(0, Finder())
import configparser, unittest
"""

_HOOKED = """
import builtins
plain = builtins.__import__
def told(name, *rest):
    print("import", name); return plain(name, *rest)
builtins.__import__ = told
import unittest
"""

_FOUND = """
import importlib.util, importlib, pkgutil, sys
print(importlib.util.find_spec("json"), "json" in sys.modules, importlib.util.find_spec("json.decoder"), importlib.util.find_spec("nothing"))
print(importlib.import_module("xml.etree.ElementTree").__name__, hasattr(sys.modules["xml"], "etree"), hasattr(sys.modules["xml"], "dom"))
import concurrent
print(hasattr(concurrent, "futures"), hasattr(importlib, "resources"))
print(pkgutil.find_loader("csv").path if sys.version_info < (3, 12) else "")
"""

_BROKEN = """
try:
    import json.nothing
except ImportError as error: print(repr(error), error.name, error.path)
try:
    from json import nothing
except ImportError as error: print(repr(error), error.name)
import beside
"""

_LEFT = """
import logging, atexit, tempfile, os, weakref, csv
handler = logging.FileHandler("log.txt", delay=False); logging.getLogger().addHandler(handler)
logging.getLogger().warning("in a file")
atexit.register(print, "handler")
out = open("rows.csv", "w"); csv.writer(out).writerow([1, 2])
kept = tempfile.NamedTemporaryFile(); weakref.finalize(kept, print, "finalized")
class Thing:
    def __del__(self): print("deleted")
thing = Thing()
"""

_PATHS = """
import sys, os
os.mkdir("more"); open("more/queue.py", "w").write("print('mine'); Queue = Empty = None")
sys.path.insert(0, "more")
import queue, json
print(queue.__file__, json.__file__)
import asyncio
"""

_BLOCKED = """
import sys, types
sys.modules["_json"] = sys.modules["_decimal"] = sys.modules["ssl"] = None
import json, decimal, http.client
print(json.encoder.c_make_encoder, decimal.Decimal(1), sys.modules["_decimal"], hasattr(http.client, "HTTPSConnection"))
try: import ssl
except ImportError as error: print(repr(error))
# What modules of the standard library look for and do not find.
for name in ("_winapi", "nt", "org.python.core", "java.lang"): sys.modules[name] = types.ModuleType(name)
try: import shutil; print(shutil.nt)
except Exception as error: print(repr(error))
try: import copy; print(copy.PyStringMap)
except Exception as error: print(repr(error))
"""

IMPORTS = [
    Case("imports_state", _STATE),
    Case("imports_state_of_code", _STATE, how="code"),
    Case("imports_at_work", _ALIVE),
    Case("imports_pool", _POOL),
    Case("imports_fork", _FORK),
    Case("imports_again", _AGAIN),
    Case("imports_watched", _WATCHED),
    Case("imports_hooked", _HOOKED),
    Case("imports_found", _FOUND),
    Case(
        "imports_broken",
        _BROKEN,
        files={
            "beside.py": "import inspect, traceback\nprint(len(inspect.stack()))\ndef f(): raise ValueError('no')\nf()"
        },
    ),
    Case("imports_left_behind", _LEFT),
    Case("imports_blocked", _BLOCKED),
    Case(
        "imports_machine",
        "import uuid, platform, socket\nprint(platform.node() == socket.gethostname(), platform.uname())",
    ),
    Case("imports_other_paths", _PATHS),
    Case("imports_shadowed", "import statistics", files={"random.py": "print('mine')\nRandom = seed = None"}),
    Case("imports_shadowed_package", "import json\nprint(json.mine)", files={"json/__init__.py": "mine = 1"}),
    Case(
        "imports_shadowed_later",
        "import csv\nopen('calendar.py', 'w').write('x = 1')\nimport calendar\nprint(calendar.x)",
    ),
    Case(
        "imports_environment",
        "import os\nos.environ['TZ'] = 'UTC+3'\nimport logging, time, tempfile\nprint(time.tzname, tempfile.gettempdir())",
        env=(("TMPDIR", "/tmp"),),
    ),
    Case("imports_replaced", "import sys, types\nsys.modules['random'] = types.ModuleType('random')\nimport tempfile"),
    Case(
        "imports_an_empty_environment",
        "import os\nos.environ.clear()\nimport subprocess, asyncio, unittest\nprint(sorted(os.environ))",
    ),
    Case(
        "imports_star",
        "from math import *\nfrom collections import *\nfrom dataclasses import *\nprint(sorted(globals()))",
    ),
]

PACKAGES = [
    Case(
        "numpy_state",
        "import sys, warnings, os\nimport numpy\nprint(list(sys.modules), warnings.filters, sorted(os.environ), len(os.listdir('/proc/self/task')))",
    ),
    Case(
        "numpy_at_work",
        "import numpy as np\nnp.random.seed(5)\nprint(np.random.rand(3), np.linalg.inv(np.eye(3) * 2), np.dot(np.ones((300, 300)), np.ones((300, 300))).sum())",
    ),
    Case(
        "numpy_threads",
        "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport numpy\nprint(len(os.listdir('/proc/self/task')))",
    ),
    Case(
        "pandas_at_work",
        "import sys, pandas as pd\nprint(pd.DataFrame({'k': list('aab'), 'v': [1, 2, 3]}).groupby('k').agg(['sum', 'mean']), list(sys.modules)[-20:])\npd.DataFrame({'a': [1]}).to_csv('a.csv')",
    ),
    Case("pandas_fails", "import pandas as pd\npd.DataFrame({'a': [1]})['b']"),
    Case(
        "matplotlib_settings",
        "import os\nopen('my.rc', 'w').write('lines.linewidth: 7\\n')\nos.environ['MATPLOTLIBRC'] = 'my.rc'\nimport matplotlib\nprint(matplotlib.rcParams['lines.linewidth'])",
        env=(("HOME", "/tmp"),),
    ),
    Case("numpy_shadowed", "import numpy", files={"numpy.py": "print('mine')"}),
]
