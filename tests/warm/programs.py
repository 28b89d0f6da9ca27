# ruff: noqa: E501
"""The programs that must end alike, started plainly and handed to a parked interpreter."""

from __future__ import annotations

from tests.warm.runners import Case

_STATE = """
import sys, os
print(sorted(sys.modules))
print(list(sys.modules))
print(sys.argv, sys.path, sys.flags, sys.executable, getattr(sys, "orig_argv", None))
print([(k, v if k not in ("__loader__",) else getattr(v, "__name__", type(v).__name__)) for k, v in globals().items()])
for s in (sys.stdin, sys.stdout, sys.stderr):
    print(s, s.encoding, s.errors, s.line_buffering, s.write_through, s.buffer, vars(s), s.newlines)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(sorted(os.environ.items()), os.getcwd(), sorted(os.listdir("/proc/self/fd")))
print(sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
print(sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook, len(sys.meta_path), len(sys.path_hooks))
print(dir(__builtins__), exit, quit)
import signal, gc, threading, locale
print([signal.getsignal(n) for n in range(1, 65)], signal.pthread_sigmask(0, []), signal.set_wakeup_fd(-1))
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)
print(threading.active_count(), threading.current_thread() is threading.main_thread(), threading.get_native_id() == os.getpid())
print(locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), os.umask(18))
"""

_FRAMES = """
import sys, inspect, traceback, warnings
try:
    print(sys._getframe(1))
except ValueError as error:
    print("nothing below:", error)
print(len(inspect.stack()), traceback.format_stack())
warnings.warn("from below", stacklevel=2)
print(sys._getframe().f_back)
"""

_RECURSION = """
import sys
depth = 0
def down():
    global depth
    depth += 1
    down()
try:
    down()
except RecursionError as error:
    print(depth, error)
"""

_LEFT_BEHIND = """
import atexit, weakref, sys
atexit.register(lambda: print("second", "__file__" in globals()))
atexit.register(print, "first")
class Thing:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name, other, sys.meta_path is None)
other = 5
thing = Thing("global")
_private = Thing("private")
cycle = Thing("cycle"); cycle.me = cycle
weakref.finalize(thing, print, "finalized")
left_open = open("left-open.txt", "w"); left_open.write("unflushed")
held = (lambda f: lambda: f)(open("held.txt", "w")); held().write("by a closure")
"""

_AT_EXIT = """
import atexit, sys, inspect, traceback
def late(where):
    print(where, len(inspect.stack()), sys._getframe(1).f_code.co_name if len(inspect.stack()) > 1 else None)
    traceback.print_stack()
atexit.register(late, "exit handler")
class Thing:
    def __del__(self, late=late): late("finalizer")
thing = Thing()
def hook(*what):
    late("hook"); raise ValueError("from the hook")
sys.excepthook = hook
1 / 0
"""

_TRAPPED_ERROR = """
class Trap(Exception):
    def __getattribute__(self, name): print("asked for", name); return super().__getattribute__(name)
    def __setattr__(self, name, value): print("set", name)
raise Trap("odd")
"""

_TRAPPED_EXIT = """
class Code(int):
    def __int__(self): raise ValueError
    def __le__(self, other): raise ValueError
    __ge__ = __lt__ = __and__ = __eq__ = __le__
    __hash__ = None
class Exit(SystemExit):
    @property
    def code(self): return Code(6)
raise Exit
"""

_TRAPPED_STREAMS = """
import sys
class Stream:
    def __getattribute__(self, name):
        sys.__stderr__.write(f"asked for {name}\\n")
        raise KeyError(name)
sys.stdout = Stream()
"""

_TRUTH = """
import sys
class Closed:
    def __bool__(self): raise ValueError
class Stream:
    closed = Closed()
    def write(self, text): pass
    def flush(self): sys.__stderr__.write("flushed\\n")
sys.stdout = sys.stderr = Stream()
"""

_COLLECTED = """
import gc, sys
class Thing: pass
def tell(phase, info, out=sys.stdout): out.write(f"{phase} {info['generation']}\\n")
thing = Thing(); thing.me = thing
del thing
gc.callbacks.append(tell)
"""

_SIGNALS = """
import atexit, os, signal, sys
def handler(number, frame):
    print("handled", number, frame is None or frame.f_code.co_filename == __file_name)
    raise ValueError("in a handler")
__file_name = __file__
signal.signal(signal.SIGUSR1, handler)
signal.signal(signal.SIGALRM, handler)
@atexit.register
def kill():
    os.kill(os.getpid(), signal.SIGUSR1)
    print('not reached')
signal.setitimer(signal.ITIMER_REAL, 30)
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1): print("killing", flush=True); kill(pid, number); print("alive")
late = Late()
"""

_AUDIT = """
import sys
def hook(event, arguments, out=sys.stdout):
    if event.partition(".")[0] in ("sys", "ctypes", "os", "gc", "object", "exec", "compile"): out.write(f"{event}\\n")
sys.addaudithook(hook)
"""

_DEEP = """
import sys
class Thing:
    def __init__(self, below): self.below = below
    def __del__(self):
        global count
        if count is not None: count += 1
count = 0
top = None
for _ in range(50000): top = Thing(top)
def down(n): return n and down(n - 1)
class Late:
    def __del__(self, down=down):
        try: down(100000)
        except RecursionError as error: print(error)
late = Late()
"""

_MODULE_SUBCLASS = """
import sys, types
class Odd(types.ModuleType):
    __dict__ = property(lambda self: 1 / 0)
    __class__ = property(lambda self: 1 / 0)
    def __getattribute__(self, name): raise ValueError(name)
    def __del__(self): print("odd gone")
class Name(str):
    __hash__ = str.__hash__
    def __getitem__(self, key): raise ValueError(key)
sys.modules["odd"] = Odd("odd")
sys.modules[Name("named")] = types.ModuleType("named")
sys.modules["text"] = "text"
globals()[Name("evil")] = 1
"""

PYTHON = [
    Case("state_of_a_script", _STATE, arguments=("a", "", "ü"), env=(("MORE", "1"),)),
    Case("state_of_code", _STATE, how="code", arguments=("-x",)),
    Case("frames", _FRAMES),
    Case("frames_of_code", _FRAMES, how="code"),
    Case("recursion_limit", _RECURSION),
    Case("recursion_error", "def f(): f()\nf()"),
    Case("exception", "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)\n"),
    Case("exception_in_code", "def f(x): return 1 / x\nf(0)", how="code"),
    Case("chained", "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e\n"),
    Case("exception_group", "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])", oldest=(3, 11)),
    Case("syntax_error", "print('never')\nx = = 1\n"),
    Case("syntax_error_in_code", "x = = 1", how="code"),
    Case("indentation_error", "if 1:\nprint(2)\n"),
    Case("syntax_warning", "x = 1\nprint(x is 1)\n"),
    Case("unfinished", "print((1,\n"),
    Case("nul_byte", "print(1)\n\0"),
    Case("declared_encoding", "# -*- coding: latin-1 -*-\nprint('ok')\n"),
    Case("unknown_encoding", "# -*- coding: nonsense -*-\nprint('ok')\n"),
    Case("exit_none", "import sys; sys.exit()"),
    Case("exit_int", "import sys; sys.exit(7)"),
    Case("exit_large", "import sys; sys.exit((1 << 40) + 5)"),
    Case("exit_negative", "import sys; sys.exit(-3)"),
    Case("exit_string", "import sys; sys.exit('it went wrong')"),
    Case("exit_object", "import sys; sys.exit(['a', 1.5])"),
    Case("exit_true", "raise SystemExit(True)"),
    Case("exit_builtin", "exit(4)"),
    Case(
        "exit_in_thread", "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()"
    ),
    Case("os_exit", "import os; print('a'); os._exit(9)"),
    Case("abort", "import os; os.abort()"),
    Case("killed", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    Case("alarm", "import signal, time; signal.alarm(1); time.sleep(5)"),
    Case(
        "interrupted", "import os, signal\nprint('a')\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(5)"
    ),
    Case(
        "interrupt_handled",
        "import os\ntry:\n    os.kill(os.getpid(), 2)\n    import time; time.sleep(5)\nexcept KeyboardInterrupt: print('caught')",
    ),
    Case("broken_pipe", "import os, sys\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('x')"),
    Case(
        "broken_pipe_at_flush",
        "import os, sys\nr, w = os.pipe(); os.close(r)\nsys.stdout = open(w, 'w')\nprint('x')",
    ),
    Case("closed_stdout", "import sys, os\nos.close(1)\nprint('x')"),
    Case(
        "stdin",
        "import sys\nprint(input('? ')); print(sys.stdin.readline()); print(sys.stdin.buffer.read())",
        stdin=b"a\r\nb\nc\xff\0",
    ),
    Case("stdin_eof", "input()"),
    Case("stdin_by_descriptor", "import os\nprint(os.read(0, 100))", stdin=b"exactly this"),
    Case("breakpoint_without_stdin", "x = 1\nbreakpoint()\nprint(x)"),
    Case(
        "binary_output",
        "import sys\nsys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff\\xfe')",
    ),
    Case("encoding", "import sys\nprint('äöü € \U0001f30a'); print('\\udcff'); sys.stderr.write('\\ud800 ü\\n')"),
    Case("huge_output", "import sys\nfor i in range(200): sys.stdout.write('%06d' % i + 'x' * 50000 + '\\n')"),
    Case("left_behind", _LEFT_BEHIND),
    Case("left_behind_after_exit", _LEFT_BEHIND + "\nsys.exit(3)"),
    Case("left_behind_after_exception", _LEFT_BEHIND + "\n1/0"),
    Case(
        "daemon_thread",
        "import threading, time\nf = open('f.txt', 'w'); f.write('kept')\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('end')",
    ),
    Case(
        "thread_outlives_main",
        "import threading, time\ndef late():\n    time.sleep(0.05); print('late', threading.main_thread().is_alive())\nthreading.Thread(target=late).start()\nprint('end')",
    ),
    Case("failing_thread", "import threading\nt = threading.Thread(target=lambda: 1/0, name='t'); t.start(); t.join()"),
    Case(
        "atexit_failing",
        "import atexit\natexit.register(print, 'still')\n@atexit.register\ndef bad(): raise ValueError('bad')",
    ),
    Case(
        "excepthook",
        "import sys\ndef hook(t, v, tb): print('hook', t.__name__, v, tb.tb_lineno, tb.tb_next, sys.exc_info())\nsys.excepthook = hook\n1/0",
    ),
    Case(
        "excepthook_failing", "import sys\ndef hook(t, v, tb): raise TypeError('in hook')\nsys.excepthook = hook\n1/0"
    ),
    Case("unraisable", "class A:\n    def __del__(self): 1/0\nA()"),
    Case(
        "fork",
        "import os, sys\npid = os.fork()\nif pid == 0:\n    print('child'); sys.exit(5)\nprint('parent', os.WEXITSTATUS(os.waitpid(pid, 0)[1]))",
    ),
    Case(
        "multiprocessing_fork",
        "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))",
    ),
    Case(
        "multiprocessing_spawn",
        "import multiprocessing as m, sys\ndef f(q): q.put((__name__, sys.argv))\nif __name__ == '__main__':\n    c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    ),
    Case(
        "multiprocessing_forkserver",
        "import multiprocessing as m\ndef f(q): q.put(__name__)\nif __name__ == '__main__':\n    c = m.get_context('forkserver'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    ),
    Case(
        "process_pool",
        "from concurrent.futures import ProcessPoolExecutor as P\nimport multiprocessing as m\nif __name__ == '__main__':\n    with P(2, mp_context=m.get_context('fork')) as p: print(list(p.map(abs, [-1, -2])))",
    ),
    Case(
        "subprocess",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.stdin.read())', 'a'], input='x', capture_output=True, text=True).stdout)\nsubprocess.run('yes | head -1', shell=True)",
    ),
    Case(
        "asyncio_server",
        "import asyncio\nasync def main():\n    async def echo(r, w):\n        w.write(await r.readline()); await w.drain(); w.close()\n    s = await asyncio.start_server(echo, '127.0.0.1', 0)\n    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())\n    w.write(b'hello\\n'); print(await r.readline()); w.close(); s.close()\nasyncio.run(main())",
    ),
    Case(
        "inspect_source",
        "import inspect, linecache\ndef f():\n    return 1  # a comment\nprint(inspect.getsource(f), inspect.getsourcefile(f), inspect.getmodule(f), linecache.getline(__file__, 1))",
    ),
    Case(
        "import_beside",
        "import beside, importlib\nprint(beside.__file__, beside.x, importlib.import_module('beside') is beside)",
        files={"beside.py": "x = 1\n"},
    ),
    Case(
        "main_again",
        "import sys\nif __name__ == '__main__':\n    import main\n    print(main.__name__, main is sys.modules['main'], '__main__' in sys.modules)\nelse: print('imported', __name__)",
    ),
    Case(
        "pickle_and_dataclass",
        "import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nprint(pickle.loads(pickle.dumps(P(1))), P.__module__)",
    ),
    Case(
        "annotations",
        "x: int = 1\nprint(__annotations__)\nimport typing\ndef f(a: 'P') -> None: ...\nclass P: ...\nprint(typing.get_type_hints(f))",
    ),
    Case("future", "print(f'{1!r}')\nimport __future__\ndef f(a: undefined_name = 1): pass"),
    Case(
        "tracing",
        "import sys\nevents = []\nsys.settrace(lambda f, e, a: events.append((e, f.f_code.co_name)))\ndef f(): return 1\nf()\nsys.settrace(None)\nprint(events)",
    ),
    Case(
        "profiling",
        "import cProfile, pstats, io\np = cProfile.Profile(); p.runcall(sorted, [2, 1]); s = io.StringIO()\npstats.Stats(p, stream=s); print(len(p.getstats()))",
    ),
    Case(
        "faulthandler",
        "import faulthandler, sys\nfaulthandler.dump_traceback(all_threads=False)\nprint(faulthandler.is_enabled())",
    ),
    Case(
        "logging",
        "import logging\nlogging.basicConfig(format='%(filename)s %(lineno)d %(funcName)s %(message)s')\nlogging.warning('w')\nlogging.getLogger('x').error('e', stack_info=True)",
    ),
    Case("timezone", "import time\nprint(time.tzname, time.localtime(0).tm_hour)", env=(("TZ", "Asia/Tokyo"),)),
    Case(
        "random_and_tempfile",
        "import random, tempfile, uuid, hashlib, secrets, ssl\nprint(random.Random(1).random(), hashlib.sha256(b'').hexdigest(), len(secrets.token_hex()))",
    ),
    Case(
        "ctypes_again",
        "import ctypes, struct, select, socket, array, errno, resource\nprint(ctypes.CDLL(None).getpid() > 0, ctypes.sizeof(ctypes.c_long), socket.gethostname() != '')",
    ),
    Case(
        "user_packages",
        "import mine; print(mine.x)",
        files={f".local/lib/python3.{n}/site-packages/mine.py": "x = 1" for n in range(9, 14)},
    ),
    Case(
        "relative_file",
        "",
        how="file",
        start=("sub/prog.py", "a"),
        files={"sub/prog.py": "import sys; print(sys.argv, __file__, sys.path[0], other.x)", "sub/other.py": "x=1"},
    ),
    Case("missing_file", "", how="file", start=("nothing.py",)),
    Case(
        "directory",
        "",
        how="file",
        start=("app",),
        files={"app/__main__.py": "import sys; print(__name__, sys.argv, __spec__)"},
    ),
    Case(
        "exec_shell",
        "",
        how="exec",
        start=("sh", "-c", "echo $0 $1 $MORE; exec cat", "x", "y"),
        stdin=b"rest",
        env=(("MORE", "1"),),
    ),
    Case(
        "exec_signals",
        "",
        how="exec",
        # Not all of SigIgn: posix_spawn leaves signals 32 and 33 ignored, which are the C library's own.
        start=(
            "sh",
            "-c",
            "grep -E 'Sig(Cgt|Blk)' /proc/self/status; grep -o 'SigIgn.*' /proc/self/status | tail -c 8; ls /proc/self/fd",
        ),
    ),
    Case("cpu_limit_of_children", "import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE) is not None)"),
    Case(
        "sabotage_alias",
        "import os, sys; sys.modules['planted'] = os; sys.modules['again'] = sys; sys.modules['me'] = sys.modules['__main__']",
    ),
    Case("sabotage_os", "import os, posix; os.__dict__.clear(); posix.__dict__.clear()"),
    Case("sabotage_os_and_error", "import os; os.__dict__.clear(); 1 / 0"),
    Case("sabotage_sys", "import sys; sys.__dict__.clear()"),
    Case("sabotage_sys_and_error", "import sys; err = sys.stderr; sys.__dict__.clear(); sys.stderr = err; 1 / 0"),
    Case("sabotage_builtins", "import builtins; builtins.__dict__.clear()"),
    Case("sabotage_builtins_and_error", "import builtins; builtins.__dict__.clear(); nothing"),
    Case(
        "sabotage_builtins_replaced",
        "import builtins\nbuiltins.BaseException = builtins.SystemExit = builtins.isinstance = builtins.getattr = None\nraise ValueError(1)",
    ),
    Case(
        "sabotage_builtins_added",
        "import builtins\nclass A:\n    def __del__(self): print('gone')\nbuiltins.kept = A()",
    ),
    Case(
        "sabotage_gc",
        "import gc, _weakref, _signal, _thread, posix, atexit, itertools\nfor m in (gc, _weakref, _signal, _thread, posix, atexit, itertools): m.__dict__.clear()\n1/0",
    ),
    Case("sabotage_modules", "import sys; sys.modules.clear(); 1 / 0"),
    Case(
        "sabotage_modules_replaced",
        "import sys, threading, atexit\natexit.register(print, 'handler')\nsys.modules = {}\nclass A:\n    def __del__(self): print('gone')\na = A()",
    ),
    Case(
        "sabotage_modules_of_nothing",
        "import sys, threading\nfor name in list(sys.modules): sys.modules[name] = None\n1 / 0",
    ),
    Case("sabotage_odd_modules", _MODULE_SUBCLASS),
    Case("sabotage_main", "import sys\ndel sys.modules['__main__']\n1 / 0"),
    Case("sabotage_globals", "globals().clear()"),
    Case(
        "sabotage_os_exit",
        "import os, posix, atexit; os._exit = posix._exit = lambda code: None; atexit._run_exitfuncs = None\natexit.register(print, 'still')",
        oldest=(3, 10),
    ),
    Case("sabotage_profile", "import sys\nsys.setprofile(lambda *a: None)"),
    Case("sabotage_profile_and_error", "import sys\nsys.setprofile(lambda *a: None)\n1 / 0"),
    Case("sabotage_profile_raising", "import sys\ndef p(*a): raise ValueError('p')\nsys.setprofile(p)\nlen('')"),
    Case("sabotage_profiler_left_on", "import cProfile\np = cProfile.Profile(); p.enable()\nprint(1)"),
    Case(
        "sabotage_profile_at_exit",
        "import atexit, sys\natexit.register(print, 'x')\natexit.register(sys.setprofile, lambda *a: None)",
    ),
    Case(
        "sabotage_trace",
        "import sys\ndef t(f, e, a):\n    if 'spawner' in f.f_code.co_filename: print(f.f_code.co_name)\n    return t\nsys.settrace(t)\nsys._getframe().f_trace = t\nx = 1",
    ),
    Case("sabotage_trace_raising", "import sys\nsys.settrace(lambda *a: 1 / 0)\n(lambda: 0)()"),
    Case("sabotage_audit", _AUDIT),
    Case("sabotage_audit_and_error", _AUDIT + "1 / 0"),
    Case(
        "sabotage_audit_raising",
        "import sys\narmed = True\ndef hook(event, arguments):\n    if event != 'exec': raise ValueError(event)\nsys.addaudithook(hook)",
    ),
    Case("sabotage_error", _TRAPPED_ERROR),
    Case("sabotage_exit", _TRAPPED_EXIT),
    Case(
        "sabotage_exit_without_code",
        "class Exit(SystemExit):\n    @property\n    def code(self): raise ValueError\nraise Exit('text')",
    ),
    Case("exit_text_without_stderr", "import sys; sys.stderr = None; sys.exit('text ü')"),
    Case("sabotage_streams", _TRAPPED_STREAMS),
    Case("sabotage_streams_truth", _TRUTH),
    Case("sabotage_streams_missing", "import sys\ndel sys.stdout, sys.stderr"),
    Case("streams_closed", "import sys\nsys.stdout.close(); sys.stderr.close()"),
    Case("streams_buffered_and_error", "import sys\nsys.stdout = open(2, 'w', closefd=False)\nprint('first')\n1 / 0"),
    Case("streams_detached", "import sys\nsys.stdout.detach()"),
    Case(
        "streams_replaced",
        "import sys, io\nsys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)), 'utf-8')\nprint('buffered')\nclass A:\n    def __del__(self): print('late')\na = A()",
    ),
    Case(
        "streams_reconfigured",
        "import sys\nsys.stdout.reconfigure(write_through=False, line_buffering=False)\nprint('pending', end='')",
    ),
    Case("streams_full", "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')"),
    Case(
        "streams_full_hooked",
        "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')\nsys.unraisablehook = lambda u: sys.stderr.write(f'{u.exc_type} {u.err_msg} {u.object is not None}\\n')",
    ),
    Case(
        "streams_full_hook_failing",
        "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')\ndef hook(u): raise ValueError('in hook')\nsys.unraisablehook = hook",
    ),
    Case("excepthook_none", "import sys\nsys.excepthook = None\n1 / 0"),
    Case("excepthook_missing", "import sys\ndel sys.excepthook\n1 / 0"),
    Case(
        "excepthook_exits",
        "import sys\ndef hook(*a): print('__file__' in globals()); sys.exit(6)\nsys.excepthook = hook\nimport atexit; atexit.register(lambda: print('__file__' in globals()))\n1 / 0",
    ),
    Case(
        "excepthook_exits_after_interrupt",
        "import sys\nsys.excepthook = lambda *a: sys.exit(6)\nraise KeyboardInterrupt",
    ),
    Case("interrupt_class", "class K(KeyboardInterrupt): pass\nraise K('x')"),
    Case(
        "interrupted_at_exit",
        "import atexit, os, signal\natexit.register(os.kill, os.getpid(), 2)\natexit.register(print, 'first')",
    ),
    Case("atexit_exits", "import atexit, sys\natexit.register(print, 'last')\natexit.register(sys.exit, 5)"),
    Case("atexit_registers", "import atexit\natexit.register(lambda: atexit.register(print, 'nested'))"),
    Case(
        "atexit_forks",
        "import atexit, os\ndef f():\n    pid = os.fork()\n    if pid: print('parent', os.waitpid(pid, 0)[1])\n    else: print('child')\natexit.register(f)\nimport sys; sys.exit(3)",
    ),
    Case(
        "atexit_removed",
        "import atexit, sys\natexit.register(print, 'still')\ndel sys.modules['atexit']",
        oldest=(3, 10),
    ),
    Case(
        "atexit_starts_a_thread",
        "import atexit, threading\ndef f():\n    t = threading.Thread(target=print, args=('in thread',)); t.start(); t.join()\natexit.register(f)",
    ),
    Case("threading_broken", "import threading\nthreading._shutdown = None"),
    Case("threading_removed", "import threading, sys\ndel threading._shutdown"),
    Case(
        "threading_replaced",
        "import threading, sys\nclass T:\n    def _shutdown(self): print('mine'); raise ValueError('x')\n    def __repr__(self): return 'T'\nsys.modules['threading'] = T()",
    ),
    Case(
        "threads_in_a_loop",
        "import threading\ndef spin():\n    while True: sum(range(100))\nfor _ in range(3): threading.Thread(target=spin, daemon=True).start()\nclass A:\n    def __del__(self): print('gone')\na = A()\nimport sys; sys.exit(4)",
    ),
    Case(
        "threads_and_error",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(50,), daemon=True).start()\n1/0",
    ),
    Case("bare_thread", "import _thread, time\n_thread.start_new_thread(time.sleep, (50,))\nprint('end')"),
    Case("finalizer_raises", "class C:\n    def __del__(self): raise ValueError('late')\nkeep = C()"),
    Case("finalizer_exits", "import sys\nclass C:\n    def __del__(self): sys.exit(9)\nkeep = C()"),
    Case(
        "finalizer_imports",
        "class C:\n    def __del__(self):\n        try:\n            import json; print('imported')\n        except ImportError as e: print(type(e))\nkeep = C()",
    ),
    Case(
        "finalizer_resurrects",
        "import builtins\nclass C:\n    def __del__(self): builtins.again = self; print('again')\nkeep = C()",
    ),
    Case(
        "generator_left",
        "def g():\n    try: yield\n    finally: print('closed'); raise SystemExit(9)\nkeep = g(); next(keep)",
    ),
    Case("coroutine_left", "async def f(): pass\nkeep = f()"),
    Case(
        "weak_callbacks",
        "import weakref\nclass C: pass\nc = C(); r = weakref.ref(c, lambda r: print('weak'))\nweakref.finalize(c, print, 'finalized')",
    ),
    Case("collector_watched", _COLLECTED),
    Case("collector_off", "import gc\ngc.disable()\n" + _COLLECTED),
    Case(
        "collector_frozen", "import gc\nclass C:\n    def __del__(self): print('gone')\nc = C(); c.me = c\ngc.freeze()"
    ),
    Case("signals_at_exit", _SIGNALS),
    Case(
        "faulthandler_on",
        "import faulthandler, signal\nfaulthandler.enable(); faulthandler.dump_traceback_later(50)\nsignal.raise_signal(11)",
    ),
    Case("deep_at_exit", _DEEP),
    Case("low_recursion_limit", "import sys\nsys.setrecursionlimit(20)\nimport atexit\natexit.register(print, 'x')"),
    Case("frames_at_exit", _AT_EXIT),
    Case("no_descriptors", "import os\nos.closerange(0, 10)\n1 / 0"),
    Case(
        "cleared_frames",
        "import sys\ntry: 1 / 0\nexcept ZeroDivisionError as error:\n    error.__traceback__.tb_frame.f_globals['x'] = 1\n    kept = error\nsys.last_value = kept",
    ),
    Case(
        "code_with_a_file_name",
        "import atexit\n__file__ = 'mine'\natexit.register(lambda: print(__file__))",
        how="code",
    ),
    Case("empty", ""),
]

_NODE_STATE = """
console.log(process.argv, process.execArgv, process.argv0, process.env.MORE, process.cwd(), process._eval, process.title);
console.log(typeof module, module.id, module.filename, module.paths, module.parent, module.children, require.main === module, process.mainModule === module);
console.log(__filename, __dirname, Object.keys(require.cache), process.eventNames(), process._preload_modules);
console.log(Object.getOwnPropertyNames(globalThis).sort().join(), Object.keys(process).sort().join());
console.log(Object.keys(require('module')._pathCache), Object.getOwnPropertyDescriptor(require('module'), 'runMain').value.name);
console.log(require('fs').readdirSync('/proc/self/fd').length, process._getActiveHandles().length);
"""

NODE = [
    Case("state_of_a_script", _NODE_STATE, "node", arguments=("a", "-b", "ü"), env=(("MORE", "1"),)),
    Case("state_of_code", _NODE_STATE, "node", how="code", arguments=("a",)),
    Case("exception", "console.log(1);\nfunction f() { throw new TypeError('x'); }\nf();", "node"),
    Case("syntax_error", "let a = = 1;", "node"),
    Case("rejection", "Promise.reject(new Error('no'));", "node"),
    Case("rejection_in_code", "Promise.reject(new Error('no'));", "node", how="code"),
    Case("rejected_value", "Promise.reject(42);", "node"),
    Case("exit_code", "process.exitCode = 3; process.on('exit', (c) => console.log('bye', c));", "node"),
    Case("exit", "process.on('exit', (c) => console.log('bye', c)); setTimeout(() => process.exit(4), 5);", "node"),
    Case("killed", "process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 5000);", "node"),
    Case(
        "stdin_sync",
        "console.log(JSON.stringify(require('fs').readFileSync(0, 'latin1')));",
        "node",
        stdin=b"a\xffb\0c",
    ),
    Case(
        "stdin_stream",
        "let n = 0; process.stdin.on('data', (d) => (n += d.length)).on('end', () => console.log(n));",
        "node",
        stdin=b"x" * 300000,
    ),
    Case(
        "stdin_lines",
        "require('readline').createInterface({ input: process.stdin }).on('line', (l) => console.log('>', l));",
        "node",
        stdin=b"a\nb\n",
    ),
    Case("huge_output", "for (let i = 0; i < 200; i++) process.stdout.write(i + 'x'.repeat(50000) + '\\n');", "node"),
    Case(
        "module_syntax",
        "import fs from 'fs';\nconsole.log(import.meta.url, typeof require);\nconst m = await import('node:os'); console.log(typeof m.cpus);",
        "node",
        files={"package.json": '{"type": "module"}'},
    ),
    Case(
        "module_file",
        "",
        "node",
        how="file",
        start=("a.mjs", "x"),
        files={
            "a.mjs": "import { b } from './b.mjs'; console.log(b, process.argv); throw new Error('e');",
            "b.mjs": "export const b = 1;",
        },
    ),
    Case("never_awaited", "", "node", how="file", start=("a.mjs",), files={"a.mjs": "await new Promise(() => {});"}),
    Case(
        "import_in_code",
        "import('./b.mjs').then((m) => console.log(m.b, os.EOL, fs === require('fs')));",
        "node",
        how="code",
        files={"b.mjs": "export const b = 1;"},
    ),
    Case(
        "require_beside",
        "console.log(require('./b').c, module.children.length);",
        "node",
        files={"b.js": "exports.c = 1; console.log(module.parent.id, require.main.filename);"},
    ),
    Case(
        "worker",
        "const w = require('worker_threads'); if (w.isMainThread) new w.Worker(__filename).on('message', (m) => console.log(m)); else w.parentPort.postMessage([process.argv.length, process.execArgv, Object.keys(require.cache)]);",
        "node",
    ),
    Case(
        "children",
        "const c = require('child_process'); if (process.send) console.log('forked', process.execArgv); else c.fork(__filename).on('exit', (x) => console.log(x, c.execFileSync(process.execPath, ['-p', '1+1']) + ''));",
        "node",
    ),
    Case("missing_file", "", "node", how="file", start=("nothing.js",)),
    Case(
        "server",
        "const s = require('http').createServer((q, r) => r.end('hi')).listen(0, '127.0.0.1', () => fetch(`http://127.0.0.1:${s.address().port}`).then((r) => r.text()).then((t) => { console.log(t); s.close(); s.closeAllConnections(); }));",
        "node",
    ),
    Case("empty", "", "node"),
]

ELIXIR = [
    Case(
        "state",
        'IO.inspect({System.argv(), __ENV__.file, __DIR__, System.get_env("MORE"), File.cwd!(), Code.required_files(), :io.getopts()})',
        "elixir",
        arguments=("a", "b c"),
        env=(("MORE", "1"),),
    ),
    Case("raise", 'IO.puts("é")\ndefmodule A do\n  def f, do: raise("boom")\nend\nA.f()', "elixir"),
    Case("code", 'IO.inspect(System.argv()); raise "x"', "elixir", how="code", arguments=("a",)),
    Case("syntax_error", "IO.puts(1", "elixir"),
    Case(
        "halt", 'System.at_exit(fn s -> IO.puts("exit #{s}") end); System.stop(3); Process.sleep(:infinity)', "elixir"
    ),
    Case(
        "stdin",
        'IO.inspect(IO.gets("> ")); IO.inspect(IO.read(:stdio, :eof)); IO.binwrite(<<1, 255, 0>>)',
        "elixir",
        stdin="é\nrest ü\n".encode(),
    ),
]
