"""Programs from one template with modules loaded share nothing but time; what cannot be shared is not loaded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, native, start_runner, stop_runner
from tests.images import import_python, import_shell
from tests.warm.runners import Case, Parked
from tidebox.errors import ExecFailed
from tidebox.model.box import BoxSpec
from tidebox.model.limits import Limits
from tidebox.model.preloads import SETS, STANDARD, modules_of
from tidebox.runtime.pool import CellKey

_SYSTEM = "/usr/bin/python3"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    """An engine whose templates have every set loaded."""
    data_dir = tmp_path_factory.mktemp("preloaded")
    import_shell(data_dir, "shell")
    import_python(data_dir, "imported", _SYSTEM)
    runner = start_runner(data_dir, pool_node=0, pool_python=1)
    for name in SETS:
        runner.submit(runner.engine.runtime.warm(BoxSpec(preload=name))).result(timeout=100)
    yield runner
    stop_runner(runner)


def _said(runner: BoxRunner, code: str, **options: str) -> str:
    result = runner(code, **options)
    assert result.ok, result
    return result.stdout.decode()


DRAWS = {
    "random": "import random; print(random.random(), random.getrandbits(64), random.Random().random())",
    "secrets": "import secrets; print(secrets.token_hex())",
    "uuid": "import uuid; print(uuid.uuid4(), uuid.uuid1())",
    "tempfile": "import tempfile; print(tempfile.mkdtemp(), tempfile.mktemp())",
    "ssl": "import ssl; print(ssl.RAND_bytes(16).hex())",
    "authkey": "import multiprocessing; print(multiprocessing.current_process().authkey.hex())",
    "numpy": "import numpy as np; print(np.random.rand(), np.random.default_rng().random(), np.random.randn())",
    "pandas": "import pandas as pd; print(pd.Series(range(10 ** 6)).sample(3).tolist())",
}


@pytest.mark.parametrize("source", DRAWS)
def test_no_two_programs_draw_the_same(loaded: BoxRunner, source: str) -> None:
    drawn = [_said(loaded, DRAWS[source]) for _ in range(4)]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("image", ["host", "imported"])
def test_what_a_program_does_to_its_modules_no_other_sees(loaded: BoxRunner, image: str) -> None:
    spoil = """
import json, logging, re, random, sys, warnings, decimal, os
json.dumps = json.spoilt = None; json.decoder.JSONDecoder.decode = None
logging.root.handlers.append("spoilt"); re._cache = {"spoilt": 1}; random.seed(1)
warnings.simplefilter("error"); decimal.getcontext().prec = 3
import importlib._bootstrap as bootstrap
for value in bootstrap._find_spec.__code__.co_consts:
    if isinstance(value, dict): [setattr(kept, "module", None) for kept in value.values()]; value.clear()
sys.modules.clear()
os._exit(0)
"""
    look = "import json, logging, re, warnings, decimal\n"
    look += "print(json.dumps([1]), hasattr(json, 'spoilt'), json.loads('2'))\n"
    look += "print(logging.root.handlers, 'spoilt' in re._cache, warnings.filters[0][0], decimal.getcontext().prec)"
    before = _said(loaded, look, image=image)
    loaded(spoil, image=image)
    assert _said(loaded, look, image=image) == before == "[1] False 2\n[] False default 28\n"


def test_numpy_of_one_program_is_not_that_of_the_next(loaded: BoxRunner) -> None:
    loaded("import numpy as np\nnp.random.seed(1); np.set_printoptions(precision=1); np.pi = 3; np.random.rand = None")
    said = _said(loaded, "import numpy as np\nprint(np.pi, np.array([1.23456]), np.random.rand() != 0.417022004702574)")
    assert said == "3.141592653589793 [1.23456] True\n"


def test_they_really_are_loaded_before(loaded: BoxRunner) -> None:
    """Told by the code that finds modules, where a program knows where to look."""
    look = "import sys, asyncio\nfind = sys.modules['_frozen_importlib']._find_spec\n"
    look += "print([len(c) > 200 for c in find.__code__.co_consts if isinstance(c, dict)])"
    assert _said(loaded, look) == "[True]\n"
    assert _said(loaded, look.replace("import sys, asyncio", "import sys")) == "[]\n"


def test_a_variable_that_an_import_reads_is_heeded(loaded: BoxRunner) -> None:
    code = (
        "import os, matplotlib\nprint(matplotlib.get_backend(), matplotlib.get_configdir(), os.path.isdir('/tmp/mine'))"
    )
    result = loaded(code, env={"MPLBACKEND": "pdf", "MPLCONFIGDIR": "/tmp/mine"})
    assert result.stdout == b"pdf /tmp/mine True\n"
    assert (
        loaded(
            "import matplotlib; print(matplotlib.rcParams['font.size'])", files={"matplotlibrc": b"font.size: 3"}
        ).stdout
        == b"3.0\n"
    )
    code = "import os, numpy\nprint(len(os.listdir('/proc/self/task')))"
    assert loaded(code, env={"OPENBLAS_NUM_THREADS": "1"}).stdout == b"1\n"
    assert loaded(code, env={"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1"}).stdout == b"1\n"


def test_threads_that_wait_for_numbers_take_nothing_of_the_program(loaded: BoxRunner) -> None:
    code = """
import os, time
import numpy
time.sleep(0.3)
for thread in os.listdir("/proc/self/task"):
    if int(thread) != os.getpid():
        used = open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()[11:13]
        print(sum(map(int, used)) / os.sysconf("SC_CLK_TCK"))
"""
    # They looked for work for a tenth of a second, in which a program with one processor had half of it.
    assert all(float(seconds) <= 0.03 for seconds in _said(loaded, code).split())


def test_matplotlib_draws(loaded: BoxRunner) -> None:
    code = "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
    code += "plt.plot([1, 2])\nplt.title('a')\nplt.savefig('p.png')"
    result = loaded(code, artifacts=["p.png"])
    assert result.ok, result
    assert result.artifacts["p.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("does", "leaves"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "leaves a thread"),
        ("import socket; kept = socket.socket()", "leaves an open descriptor"),
        ("import signal; signal.signal(10, print)", "leaves a signal handler"),
        ("import os; os.environ['LEFT'] = '1'", "leaves a variable of the environment"),
        ("import sys; sys.displayhook = print", "leaves something in sys"),
        ("import builtins; builtins.mine = 1", "leaves something among the builtins"),
        ("1 / 0", "fails: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_taken_back_is_not_loaded(tmp_path: Path, does: str, leaves: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "spoiler.py").write_text(does)
    interpreter = Parked(home, _SYSTEM, ("json", "spoiler"))
    interpreter.env["PYTHONPATH"] = str(tmp_path)
    outcome = interpreter.run(Case("refused", "print('never')"))
    assert (outcome.stdout, outcome.exit_code) == (b"", 1)
    assert f"'refused': 'spoiler', 'reason': 'its import {leaves}" in outcome.stderr.decode()


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    outcome = Parked(tmp_path, _SYSTEM, ("nothing.of.this.name", "json")).run(
        Case("left out", "import json; print(json.dumps(1))")
    )
    assert (outcome.stdout, outcome.exit_code) == (b"1\n", 0)


def test_an_image_without_the_interpreter_is_not_parked_in_vain(loaded: BoxRunner) -> None:
    pool = loaded.engine.pool
    key = CellKey.of(loaded.engine.runtime, "python", BoxSpec(image="shell", limits=Limits(timeout=20.0)))
    # That one ended is noticed a little later, and several must have before it is given up.
    for _ in range(40):
        with pytest.raises(ExecFailed):
            loaded("print(1)", image="shell")
        loaded.submit(pool.filled()).result(timeout=50)
        if pool.parked(key) == 0:
            break
    assert pool.parked(key) == 0
    assert loaded(command=["sh", "-c", "echo fine"], image="shell").stdout == b"fine\n"


def test_a_template_that_dies_costs_its_programs_time_only(loaded: BoxRunner) -> None:
    async def forget() -> None:
        runtime = native(loaded.engine)
        spawner = runtime._spawner
        assert spawner is not None
        name = next(name for name in runtime._templates if name.endswith(STANDARD))
        await spawner.request("discard", template=name)

    loaded.submit(forget()).result(timeout=20)
    for _ in range(3):
        assert _said(loaded, "import json; print(json.dumps(1))") == "1\n"
    loaded.submit(loaded.engine.runtime.warm(BoxSpec(preload=STANDARD))).result(timeout=50)
    assert loaded.engine.runtime.is_warm(BoxSpec(preload=STANDARD))


def test_templates_without_boxes_are_let_go(loaded: BoxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = native(loaded.engine)

    async def open_one(spec: BoxSpec) -> set[str]:
        box = await runtime.open(spec)
        try:
            return set(runtime._templates)
        finally:
            await box.close()

    before = set(runtime._templates)
    unused = loaded.submit(open_one(BoxSpec(executable=False))).result(timeout=50) - before
    assert len(unused) == 1
    monkeypatch.setattr(runtime._templates, "most", 1)
    # Of a kind that was not there: room is made for it.
    after = loaded.submit(open_one(BoxSpec(image="imported", executable=False))).result(timeout=50)
    assert not unused & after
    busy = set(runtime._template_of.values())
    assert {name for name in after if name not in busy} <= {name for name in after if "noexec" in name}
    assert loaded("print('again')").stdout == b"again\n"
    assert loaded("print('again')", image="imported").stdout == b"again\n"


def test_the_pool_tells_how_programs_of_each_image_start(loaded: BoxRunner) -> None:
    pool, runtime = loaded.engine.pool, loaded.engine.runtime
    keys = [CellKey.of(runtime, "python", BoxSpec(image=image)) for image in ("imported", "shell")]

    async def told() -> dict[tuple[str, str], str]:
        for key in keys:
            pool.want(key, Limits())
        # An interpreter that is not there ends as often as it is parked.
        async with asyncio.timeout(40):
            while pool.starts().get(("shell", "python")) != "cold":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return dict(pool.starts())

    found = loaded.submit(told()).result(timeout=50)
    assert found["host", "python"] == "forked"
    assert found["imported", "python"] == "parked"


async def test_the_guest_that_was_not_asked_for_the_longest_goes(tmp_path: Path) -> None:
    runner = await asyncio.to_thread(start_runner, tmp_path, pool_node=0, pool_python=1, pool_guests=1)
    try:
        pool = runner.engine.pool
        plain = CellKey.of(runner.engine.runtime, "python", BoxSpec(limits=Limits(timeout=20.0)))
        first, second = (plain._replace(executable=flag, inodes=5000) for flag in (True, False))
        for key in (first, second):
            runner.loop.call_soon_threadsafe(pool.want, key, Limits(timeout=20.0, inodes=5000))
            async with asyncio.timeout(20):
                await _until_parked(runner, key)
        assert (pool.parked(first), pool.parked(second)) == (0, 1)
    finally:
        await asyncio.to_thread(stop_runner, runner)


async def _until_parked(runner: BoxRunner, key: CellKey) -> None:
    while not runner.engine.pool.parked(key):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_sets_are_loaded_in_an_order_that_can_be_seen() -> None:
    for name in SETS:
        modules = modules_of(name)
        assert len(set(modules)) == len(modules)
        with contextlib.suppress(ValueError):
            assert modules.index("numpy") < modules.index("json")
