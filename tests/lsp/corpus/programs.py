"""Programs that fail, and where: the source of the corpus.

The line that an editor is to mark has ``<-`` in it, or ``<- 1``, ``<- 2`` for several marks in the order of their
messages. A message is what the parser is expected to say, word by word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PYTEST = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q"]
UNITTEST = ["python3", "-m", "unittest"]
GO = {"HOME": "/tmp", "GO111MODULE": "off", "GOFLAGS": ""}
GO_MODULE = {"HOME": "/tmp", "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
JUNIT4 = "/usr/share/java/junit4.jar:/usr/share/java/hamcrest-core.jar:."
JUNIT5 = ":".join(
    f"/usr/share/java/{name}.jar"
    for name in (
        "junit-platform-console",
        "junit-platform-commons",
        "junit-platform-engine",
        "junit-platform-launcher",
        "junit-platform-reporting",
        "junit-jupiter-api",
        "junit-jupiter-engine",
        "opentest4j",
        "apiguardian-api",
        "picocli",
        "univocity-parsers",
    )
)


@dataclass(frozen=True)
class Case:
    """One program."""

    name: str
    files: dict[str, str]
    command: list[str]
    messages: list[str]
    """Of each mark; none where no frame is in the workspace."""
    warnings: bool = False
    """Whether the marks are warnings."""
    options: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []


def case(
    name: str, files: dict[str, str] | str, command: list[str], *messages: str, warnings: bool = False, **options: Any
) -> None:
    """Add a program."""
    suffix = {"python3": ".py", "node": ".js", "sh": ".sh", "bash": ".sh", "busybox": ".sh"}.get(command[0], "")
    if isinstance(files, str):
        main = "main" + suffix
        files, command = {main: files.lstrip("\n")}, [*command, main]
    else:
        files = {path: text.lstrip("\n") for path, text in files.items()}
    CASES.append(Case(name, files, command, list(messages), warnings, options))


def python(name: str, files: dict[str, str] | str, *messages: str, **options: Any) -> None:
    """A Python program."""
    command = ["python3"] if isinstance(files, str) else ["python3", "main.py"]
    case("python-" + name, files, command, *messages, **options)


python("zero-division", "def f(x):\n    return 1 / x  # <-\n\nf(0)\n", "ZeroDivisionError: division by zero")
python("name-error", "print(undefined)  # <-\n", "NameError: name 'undefined' is not defined")
python("index-error", "a = [1]\nprint(a[3])  # <-\n", "IndexError: list index out of range")
python("key-error", "d = {}\nd['some key']  # <-\n", "KeyError: 'some key'")
python("assert", "assert 1 == 2, 'not equal'  # <-\n", "AssertionError: not equal")
python("assert-bare", "def check():\n    assert False  # <-\ncheck()\n", "AssertionError")
python("type-error", "'a' + 1  # <-\n", 'TypeError: can only concatenate str (not "int") to str')
python("exit-message", "import sys\ndef f():\n    raise OSError('disk')  # <-\nf()\n", "OSError: disk")
python(
    "in-library",
    "import json\n\njson.loads('{')  # <-\n",
    "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
)
python(
    "in-module",
    {
        "main.py": "from lib import helper\nhelper.work()\n",
        "lib/__init__.py": "",
        "lib/helper.py": "def work():\n    raise ValueError('deep')  # <-\n",
    },
    "ValueError: deep",
)
python(
    "import-missing", "import does_not_exist  # <-\n", "ModuleNotFoundError: No module named 'does_not_exist'"
)
python(
    "import-name",
    "from os import nothing_like_it  # <-\n",
    "ImportError: cannot import name 'nothing_like_it' from 'os' (/usr/lib/python3.11/os.py)",
)
python("recursion", "def f(n):\n    return f(n + 1)  # <-\nf(0)\n", "RecursionError: maximum recursion depth exceeded")
python("multi-line", "raise ValueError('first\\nsecond\\nthird')  # <-\n", "ValueError: first\nsecond\nthird")
python("note", "e = ValueError('x')\ne.add_note('try y')\nraise e  # <-\n", "ValueError: x\ntry y")
python("custom", "class MyError(Exception):\n    pass\nraise MyError('own')  # <-\n", "MyError: own")
python("custom-module", {"main.py": "import errs\nraise errs.Bad(7)  # <-\n", "errs.py": "class Bad(Exception): pass\n"}, "errs.Bad: 7")
python("empty-message", "raise ValueError  # <-\n", "ValueError")
python("unicode", "raise ValueError('größer als 5 ☃')  # <-\n", "ValueError: größer als 5 ☃")
python("base-exception", "raise GeneratorExit('g')  # <-\n", "GeneratorExit: g")
python("keyboard-interrupt", "raise KeyboardInterrupt  # <-\n", "KeyboardInterrupt")
python("name-with-space", {"main.py": "import runpy\nrunpy.run_path('a b.py')\n", "a b.py": "1 / 0  # <-\n"}, "ZeroDivisionError: division by zero")
python("exec", "exec(compile('1/0', '<generated>', 'exec'))  # <-\n", "ZeroDivisionError: division by zero")
python("comprehension", "print([1 / x for x in (1, 0)])  # <-\n", "ZeroDivisionError: division by zero")
python("decorated", "import functools\ndef d(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a)\n    return g\n@d\ndef f():\n    raise RuntimeError('in f')  # <-\nf()\n", "RuntimeError: in f")
python("generator", "def g():\n    yield 1\n    raise ValueError('later')  # <-\nlist(g())\n", "ValueError: later")
python("async", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise ValueError('async')  # <-\nasyncio.run(f())\n", "ValueError: async")
python("context-manager", "class C:\n    def __enter__(self): return self\n    def __exit__(self, *a):\n        raise OSError('closing')  # <-\nwith C():\n    pass\n", "OSError: closing")
python("tmp-file", "import os\nos.mkdir('/nope/at/all')  # <-\n", "FileNotFoundError: [Errno 2] No such file or directory: '/nope/at/all'")
python("subprocess", "import subprocess\nsubprocess.run(['false'], check=True)  # <-\n", "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.")
python("printed-before", "import traceback, sys\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\nprint('some text', file=sys.stderr)\nraise ValueError('the end')  # <-\n", "ValueError: the end")
python("syntax", "x = (1,  # <-\n\nprint(x)\n", "SyntaxError: '(' was never closed")
python("syntax-imported", {"main.py": "import broken\n", "broken.py": "def f()  # <-\n    pass\n"}, "SyntaxError: expected ':'")
python("indentation", "def f():\nreturn 1  # <-\n", "IndentationError: expected an indented block after function definition on line 1")
python("tab-error", "if True:\n        x = 1\n\ty = 2  # <-\n", "TabError: inconsistent use of tabs and spaces in indentation")
python("chained-from", "def a():\n    raise ValueError('inner')\ntry:\n    a()\nexcept ValueError as e:\n    raise RuntimeError('outer') from e  # <-\n", "RuntimeError: outer")
python("chained-during", "try:\n    {}['k']\nexcept KeyError:\n    1 / 0  # <-\n", "ZeroDivisionError: division by zero")
python("chained-three", "def f():\n    try:\n        try:\n            1 / 0\n        except ZeroDivisionError as e:\n            raise KeyError('two') from e\n    except KeyError as e:\n        raise ValueError('three') from e  # <-\nf()\n", "ValueError: three")
python("chained-none", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('alone') from None  # <-\n", "ValueError: alone")
python("group", "def a():\n    raise ValueError('one')  # <- 1\ndef b():\n    raise TypeError('two')  # <- 2\nfound = []\nfor f in (a, b):\n    try:\n        f()\n    except Exception as e:\n        found.append(e)\nraise ExceptionGroup('several', found)\n", "ValueError: one", "TypeError: two")
python("group-nested", "def leaf():\n    raise KeyError('leaf')  # <-\ntry:\n    leaf()\nexcept KeyError as e:\n    inner = ExceptionGroup('inner', [e])\nraise ExceptionGroup('outer', [inner])\n", "KeyError: 'leaf'")
python("group-task", "import asyncio\nasync def bad():\n    raise ValueError('task')  # <-\nasync def main():\n    async with asyncio.TaskGroup() as g:\n        g.create_task(bad())\nasyncio.run(main())\n", "ValueError: task")
python("group-unraised", "raise ExceptionGroup('g', [ValueError('never raised')])  # <-\n", "ValueError: never raised")
python("group-chained-leaf", "def leaf():\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        raise ValueError('wrapped') from e  # <-\ntry:\n    leaf()\nexcept ValueError as e:\n    found = e\nraise ExceptionGroup('g', [found])\n", "ValueError: wrapped")
python("multiprocessing", "import multiprocessing\ndef f(x):\n    return 1 / x\nif __name__ == '__main__':\n    with multiprocessing.Pool(1) as p:\n        p.map(f, [0])  # <-\n", "ZeroDivisionError: division by zero")
python("thread-pool", "from concurrent.futures import ThreadPoolExecutor\ndef f():\n    raise ValueError('in a thread')  # <-\nwith ThreadPoolExecutor() as pool:\n    pool.submit(f).result()\n", "ValueError: in a thread")
python("warning", "import warnings\nwarnings.warn('old thing', DeprecationWarning)  # <-\n", "DeprecationWarning: old thing", warnings=True)
python("warning-user", "import warnings\ndef f():\n    warnings.warn('careful', stacklevel=2)\nf()  # <-\n", "UserWarning: careful", warnings=True)
python("warning-syntax", "x = 1\nif x is 1:  # <-\n    print('one')\n", 'SyntaxWarning: "is" with a literal. Did you mean "=="?', warnings=True)
python("warning-error", "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('strict')  # <-\n", "UserWarning: strict")
python("no-frame", "import sys\nsys.exit('just a message')\n")
python("exit-code", "import sys\nsys.exit(3)\n")


def unittest(name: str, text: str, *messages: str) -> None:
    """Tests of unittest."""
    head = "import unittest\n\nclass T(unittest.TestCase):\n"
    case("unittest-" + name, {"test_it.py": head + text}, [*UNITTEST, "test_it"], *messages)


unittest("fail", "    def test_a(self):\n        self.assertEqual(1, 2)  # <-\n", "AssertionError: 1 != 2")
unittest("error", "    def test_a(self):\n        {}['k']  # <-\n", "KeyError: 'k'")
unittest("two", "    def test_a(self):\n        self.fail('first')  # <- 1\n    def test_b(self):\n        self.assertTrue(False)  # <- 2\n    def test_c(self):\n        pass\n", "AssertionError: first", "AssertionError: False is not true")
unittest("set-up", "    def setUp(self):\n        raise OSError('no set-up')  # <-\n    def test_a(self):\n        pass\n", "OSError: no set-up")
unittest("sub-test", "    def test_a(self):\n        for i in (1,):\n            with self.subTest(i=i):\n                self.assertEqual(i, 0)  # <-\n", "AssertionError: 1 != 0")
unittest("chained", "    def test_a(self):\n        try:\n            1 / 0\n        except ZeroDivisionError as e:\n            raise ValueError('wrapped') from e  # <-\n", "ValueError: wrapped")
unittest("message", "    def test_a(self):\n        self.assertIn(3, [1, 2], 'three is missing')  # <-\n", "AssertionError: 3 not found in [1, 2] : three is missing")
case("unittest-import", {"test_it.py": "import nothing_here  # <-\n"}, [*UNITTEST, "test_it"], "ModuleNotFoundError: No module named 'nothing_here'")


def pytest(name: str, files: dict[str, str] | str, *messages: str, arguments: tuple[str, ...] = (), **options: Any) -> None:
    """Tests of pytest."""
    named = {"test_it.py": files} if isinstance(files, str) else files
    case("pytest-" + name, named, [*PYTEST, *arguments, "test_it.py"], *messages, packages=["pytest"], **options)


_HELPER = "def helper(x):\n    raise ValueError(f'bad {x}')  # <-\n\ndef test_a():\n    helper(3)\n"
_TWO = "def test_a():\n    assert 1 == 2  # <- 1\n\ndef test_b():\n    assert [1] == [2], 'lists'  # <- 2\n\ndef test_c():\n    pass\n"
pytest("assert", "def test_a():\n    assert 1 == 2  # <-\n", "assert 1 == 2")
pytest("message", "def test_a():\n    assert 1 == 2, 'not two'  # <-\n", "AssertionError: not two")
pytest("helper", _HELPER, "ValueError: bad 3")
pytest("two", _TWO, "assert 1 == 2", "AssertionError: lists")
pytest("short", _HELPER, "ValueError: bad 3", arguments=("--tb=short",))
pytest("native", _HELPER, "ValueError: bad 3", arguments=("--tb=native",))
pytest("line", _TWO, "assert 1 == 2", "AssertionError: lists", arguments=("--tb=line",))
pytest("long", _HELPER, "ValueError: bad 3", arguments=("--tb=long",))
pytest("colour", _TWO, "assert 1 == 2", "AssertionError: lists", arguments=("--color=yes",))
pytest("syntax", "def test_a(:  # <-\n    pass\n", "SyntaxError: invalid syntax")
pytest("import", "import nothing_here  # <-\n\ndef test_a():\n    pass\n", "ModuleNotFoundError: No module named 'nothing_here'")
pytest("fixture", "def test_a(nothing):  # <-\n    pass\n", "fixture 'nothing' not found")
pytest("fixture-error", "import pytest\n@pytest.fixture\ndef thing():\n    raise OSError('no thing')  # <-\ndef test_a(thing):\n    pass\n", "OSError: no thing")
pytest("raises", "import pytest\ndef test_a():\n    with pytest.raises(ValueError):  # <-\n        pass\n", "Failed: DID NOT RAISE ValueError")
pytest("chained", "def test_a():\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        raise ValueError('wrapped') from e  # <-\n", "ValueError: wrapped")
pytest("class", "class TestIt:\n    def test_a(self):\n        assert 'a' in 'bcd'  # <-\n", "AssertionError: assert 'a' in 'bcd'")
pytest("parametrized", "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x):\n    assert x == 1  # <-\n", "assert 2 == 1")
pytest("module", {"test_it.py": "from lib import f\ndef test_a():\n    f()\n", "lib.py": "def f():\n    raise KeyError('lib')  # <-\n"}, "KeyError: 'lib'")
pytest("warning", "import warnings\ndef test_a():\n    warnings.warn('old', DeprecationWarning)  # <-\n", "DeprecationWarning: old", warnings=True)


def node(name: str, files: dict[str, str] | str, *messages: str, main: str = "main.js", arguments: tuple[str, ...] = (), **options: Any) -> None:
    """A program for Node."""
    named = {main: files} if isinstance(files, str) else files
    case("node-" + name, named, ["node", *arguments, main], *messages, **options)


node("error", "function f() {\n  throw new Error('boom'); // <-\n}\nf();\n", "Error: boom")
node("type-error", "const x = undefined;\nx.y; // <-\n", "TypeError: Cannot read properties of undefined (reading 'y')")
node("reference", "nothing(); // <-\n", "ReferenceError: nothing is not defined")
node("range", "new Array(-1); // <-\n", "RangeError: Invalid array length")
node("syntax", "let x = ; // <-\n", "SyntaxError: Unexpected token ';'")
node("syntax-required", {"main.js": "require('./broken');\n", "broken.js": "function ( { // <-\n"}, "SyntaxError: Function statements require a function name")
node("esm", "function f() {\n  throw new Error('module'); // <-\n}\nf();\n", "Error: module", main="main.mjs")
node("esm-syntax", "export const = 1; // <-\n", "SyntaxError: Unexpected token '='", main="main.mjs")
node("esm-import", {"main.mjs": "import { nope } from './lib.mjs'; // <-\nnope();\n", "lib.mjs": "export const yes = 1;\n"}, "SyntaxError: The requested module './lib.mjs' does not provide an export named 'nope'", main="main.mjs")
node("cause", "function f() {\n  throw new Error('outer', { cause: new TypeError('inner') }); // <-\n}\nf();\n", "Error: outer")
node("cause-two", "function a() { throw new Error('one'); }\nfunction b() { try { a(); } catch (e) { throw new Error('two', { cause: e }); } }\nfunction c() { try { b(); } catch (e) { throw new Error('three', { cause: e }); } } // <-\nc();\n", "Error: three")
node("rejection", "async function f() {\n  throw new Error('late'); // <-\n}\nf();\n", "Error: late")
node("rejection-await", "const wait = () => new Promise((done) => setTimeout(done, 1));\nasync function f() {\n  await wait();\n  throw new RangeError('awaited'); // <-\n}\nf();\n", "RangeError: awaited")
node("timer", "setTimeout(() => {\n  throw new Error('timer'); // <-\n}, 1);\n", "Error: timer")
node("promise-value", "Promise.reject(5);\n")
node("thrown-object", "throw { code: 5 }; // <-\n", "{ code: 5 }")
node("thrown-string", "function f() {\n  throw 'text'; // <-\n}\nf();\n", "text")
node("multi-line", "throw new Error('first\\nsecond'); // <-\n", "Error: first\nsecond")
node("custom", "class MyError extends Error {\n  constructor(m) { super(m); this.name = 'MyError'; this.code = 7; }\n}\nfunction f() { throw new MyError('own'); } // <-\nf();\n", "MyError: own")
node("in-map", "[1].map((x) => {\n  throw new Error('mapped'); // <-\n});\n", "Error: mapped")
node("method", "class A {\n  go() {\n    this.missing(); // <-\n  }\n}\nnew A().go();\n", "TypeError: this.missing is not a function")
node("constructor", "class A {\n  constructor() {\n    throw new Error('made'); // <-\n  }\n}\nnew A();\n", "Error: made")
node("json", "JSON.parse('{'); // <-\n", "SyntaxError: Expected property name or '}' in JSON at position 1")
node("assert", "const assert = require('assert');\nassert.strictEqual(1, 2); // <-\n", "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n1 !== 2")
node("missing-module", "require('./nothing'); // <-\n", "Error: Cannot find module './nothing'\nRequire stack:\n- /workspace/main.js")
node("fs", "require('fs').readFileSync('/nope'); // <-\n", "Error: ENOENT: no such file or directory, open '/nope'")
node("nested-file", {"main.js": "require('./src/deep');\n", "src/deep.js": "function go() {\n  throw new Error('deep'); // <-\n}\ngo();\n"}, "Error: deep")
node("node-modules", {"main.js": "require('./node_modules/lib'); // <-\n", "node_modules/lib/index.js": "throw new Error('vendor');\n"}, "Error: vendor")
node("recursion", "function f() {\n  f(); // <-\n}\nf();\n", "RangeError: Maximum call stack size exceeded")
node("aggregate", "function f() {\n  throw new AggregateError([new Error('a'), new Error('b')], 'both'); // <-\n}\nf();\n", "AggregateError: both")
node("printed-before", "try { null.x; } catch (e) { console.error(e); }\nconsole.error('going on');\nthrow new Error('the end'); // <-\n", "Error: the end")
node("exit-code", "process.exit(4);\n")
node(
    "source-map",
    {
        "app.js": "function f(x) {\n  throw new Error('mapped');\n}\nf(1);\n//# sourceMappingURL=app.js.map\n",
        "app.js.map": '{"version":3,"file":"app.js","sources":["src/app.ts"],"names":[],"mappings":"AACA,SAAS,CAAC,CAAC,CAAS;IAClB,MAAM,IAAI,KAAK,CAAC,QAAQ,CAAC;AAC3B;AACA,CAAC,CAAC,CAAC"}',
        "src/app.ts": "// TypeScript\nfunction f(x: number) {\n  throw new Error('mapped'); // <-\n}\nf(1);\n",
    },
    "Error: mapped",
    main="app.js",
    arguments=("--enable-source-maps",),
)


def node_test(name: str, text: str, *messages: str, arguments: tuple[str, ...] = ()) -> None:
    """Tests for Node's own runner."""
    head = "const { test, describe, it } = require('node:test');\nconst assert = require('node:assert');\n"
    case("node-test-" + name, {"it.test.js": head + text}, ["node", "--test", *arguments, "it.test.js"], *messages)


for _reporter in ("tap", "spec"):
    _arguments = (f"--test-reporter={_reporter}",)
    node_test(f"{_reporter}-assert", "test('adds', () => {\n  assert.strictEqual(1 + 1, 3); // <-\n});\n", "Expected values to be strictly equal:" if _reporter == "tap" else "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:", arguments=_arguments)
    node_test(f"{_reporter}-throw", "function helper() {\n  throw new Error('helped'); // <-\n}\ntest('throws', () => helper());\n", "helped" if _reporter == "tap" else "Error: helped", arguments=_arguments)
    node_test(f"{_reporter}-two", "test('a', () => {\n  throw new Error('first'); // <- 1\n});\ntest('b', async () => {\n  throw new TypeError('second'); // <- 2\n});\ntest('c', () => {});\n", *(("first", "second") if _reporter == "tap" else ("Error: first", "TypeError [Error]: second")), arguments=_arguments)
    node_test(f"{_reporter}-describe", "describe('group', () => {\n  it('inner', () => {\n    assert.ok(false, 'not ok'); // <-\n  });\n});\n", "not ok" if _reporter == "tap" else "AssertionError [ERR_ASSERTION]: not ok", arguments=_arguments)


def tsc(name: str, files: dict[str, str], *messages: str, arguments: tuple[str, ...] = ()) -> None:
    """A program that the compiler of TypeScript refuses."""
    command = ["tsc", "--noEmit", "--ignoreConfig", *arguments, *(path for path in files if path.endswith(".ts"))]
    case("tsc-" + name, files, command, *messages, packages={"node": ["typescript"]})


tsc("type", {"main.ts": "const x: number = 'a'; // <-\n"}, "TS2322: Type 'string' is not assignable to type 'number'.")
tsc("two", {"main.ts": "let a: string = 1; // <- 1\nlet b: number = a; // <- 2\n"}, "TS2322: Type 'number' is not assignable to type 'string'.", "TS2322: Type 'string' is not assignable to type 'number'.")
tsc("syntax", {"main.ts": "const = 5; // <-\n"}, "TS1134: Variable declaration expected.")
tsc("pretty", {"main.ts": "function f(n: number) { return n; }\nf('x'); // <-\n"}, "TS2345: Argument of type 'string' is not assignable to parameter of type 'number'.", arguments=("--pretty",))
tsc("directory", {"src/deep/main.ts": "missing(); // <-\n"}, "TS2304: Cannot find name 'missing'.")


def go(name: str, text: str, *messages: str) -> None:
    """A Go program."""
    case("go-" + name, {"main.go": text}, ["go", "run", "./main.go"], *messages, env=GO)


go("index", "package main\n\nfunc main() {\n\ta := []int{1}\n\tn := 5\n\tprintln(a[n]) // <-\n}\n", "runtime error: index out of range [5] with length 1")
go("nil-map", "package main\n\nfunc main() {\n\tvar m map[string]int\n\tm[\"a\"] = 1 // <-\n}\n", "assignment to entry in nil map")
go("nil-pointer", "package main\n\ntype T struct{ x int }\n\nfunc (t *T) get() int {\n\treturn t.x // <-\n}\n\nfunc main() {\n\tvar t *T\n\tprintln(t.get())\n}\n", "runtime error: invalid memory address or nil pointer dereference")
go("panic", "package main\n\nfunc f() {\n\tpanic(\"own words\") // <-\n}\n\nfunc main() {\n\tf()\n}\n", "own words")
go("panic-error", "package main\n\nimport \"errors\"\n\nfunc main() {\n\tpanic(errors.New(\"an error\")) // <-\n}\n", "an error")
go("panic-wrapped", "package main\n\nimport (\n\t\"errors\"\n\t\"fmt\"\n)\n\nfunc main() {\n\terr := errors.New(\"inner\")\n\tpanic(fmt.Errorf(\"outer: %w\", err)) // <-\n}\n", "outer: inner")
go("repanic", "package main\n\nfunc f() {\n\tdefer func() {\n\t\trecover()\n\t\tpanic(\"second\") // <-\n\t}()\n\tpanic(\"first\")\n}\n\nfunc main() {\n\tf()\n}\n", "second")
go("goroutine", "package main\n\nimport \"time\"\n\nfunc work() {\n\tpanic(\"in a goroutine\") // <-\n}\n\nfunc main() {\n\tgo work()\n\ttime.Sleep(time.Second)\n}\n", "in a goroutine")
go("deadlock", "package main\n\nfunc main() {\n\tc := make(chan int)\n\t<-c // <-\n}\n", "all goroutines are asleep - deadlock!")
go("divide", "package main\n\nfunc f(a, b int) int {\n\treturn a / b // <-\n}\n\nfunc main() {\n\tprintln(f(1, 0))\n}\n", "runtime error: integer divide by zero")
go("type-assertion", "package main\n\nfunc main() {\n\tvar x interface{} = 1\n\tprintln(x.(string)) // <-\n}\n", "interface conversion: interface {} is int, not string")
go("library", "package main\n\nimport \"strings\"\n\nfunc main() {\n\tstrings.Repeat(\"a\", -1) // <-\n}\n", "strings: negative Repeat count")
go("compile-type", "package main\n\nfunc main() {\n\tvar s string = 5 // <-\n\t_ = s\n}\n", "cannot use 5 (untyped int constant) as string value in variable declaration")
go("compile-unused", "package main\n\nimport \"os\" // <- 1\n\nfunc main() {\n\tx := 1 // <- 2\n}\n", 'imported and not used: "os"', "x declared but not used")
go("compile-undefined", "package main\n\nfunc main() {\n\tnothing() // <-\n}\n", "undefined: nothing")
go("compile-syntax", "package main\n\nfunc main() {\n\tx := = 1 // <-\n}\n", "syntax error: unexpected =, expecting expression")
go("compile-arguments", "package main\n\nfunc f(a int, b string) {}\n\nfunc main() {\n\tf(1) // <-\n}\n", "not enough arguments in call to f\nhave (number)\nwant (int, string)")
go("exit-code", "package main\n\nimport \"os\"\n\nfunc main() {\n\tos.Exit(3)\n}\n")


def go_test(name: str, files: dict[str, str], *messages: str) -> None:
    """Tests in Go."""
    case("go-test-" + name, {"go.mod": "module example.com/app\n\ngo 1.19\n", **files}, ["go", "test", "./..."], *messages, env=GO_MODULE)


_GO_TEST = "package app\n\nimport \"testing\"\n\n"
go_test("error", {"app_test.go": _GO_TEST + "func TestAdd(t *testing.T) {\n\tt.Errorf(\"got %d\", 1) // <-\n}\n"}, "got 1")
go_test("two", {"app_test.go": _GO_TEST + "func TestA(t *testing.T) {\n\tt.Fatal(\"first\") // <- 1\n}\n\nfunc TestB(t *testing.T) {\n\tt.Error(\"second\") // <- 2\n}\n\nfunc TestC(t *testing.T) {}\n"}, "first", "second")
go_test("sub", {"app_test.go": _GO_TEST + "func TestA(t *testing.T) {\n\tt.Run(\"inner\", func(t *testing.T) {\n\t\tt.Error(\"in a subtest\") // <-\n\t})\n}\n"}, "in a subtest")
go_test("panic", {"app_test.go": _GO_TEST + "func helper() {\n\tpanic(\"in a test\") // <-\n}\n\nfunc TestA(t *testing.T) {\n\thelper()\n}\n"}, "in a test")
go_test("package", {"deep/pkg/pkg_test.go": "package pkg\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {\n\tt.Error(\"deep\") // <-\n}\n"}, "deep")
go_test("compile", {"app_test.go": _GO_TEST + "func TestA(t *testing.T) {\n\tmissing() // <-\n}\n"}, "undefined: missing")


def java(name: str, files: dict[str, str] | str, *messages: str, command: list[str] | None = None) -> None:
    """A Java program."""
    named = {"Main.java": files} if isinstance(files, str) else files
    case("java-" + name, named, command or ["java", "Main.java"], *messages, memory=2 << 30)


def _java_build(*run: str, path: str = ".") -> list[str]:
    return ["sh", "-c", f"javac -cp {path} -d /tmp/out $(find . -name '*.java') && java -cp {path}:/tmp/out {' '.join(run)}"]


_MAIN = "public class Main {\n%s\n}\n"
java("runtime", _MAIN % "  static void f() {\n    throw new IllegalStateException(\"bad state\"); // <-\n  }\n  public static void main(String[] a) {\n    f();\n  }", "java.lang.IllegalStateException: bad state")
java("null", _MAIN % "  static String s;\n  public static void main(String[] a) {\n    System.out.println(s.length()); // <-\n  }", 'java.lang.NullPointerException: Cannot invoke "String.length()" because "Main.s" is null')
java("index", _MAIN % "  public static void main(String[] a) {\n    int[] x = new int[2];\n    x[2] = 1; // <-\n  }", "java.lang.ArrayIndexOutOfBoundsException: Index 2 out of bounds for length 2")
java("library", _MAIN % "  public static void main(String[] a) {\n    Integer.parseInt(\"x\"); // <-\n  }", 'java.lang.NumberFormatException: For input string: "x"')
java("no-message", _MAIN % "  public static void main(String[] a) {\n    throw new RuntimeException(); // <-\n  }", "java.lang.RuntimeException")
java("cause", _MAIN % "  static void inner() {\n    throw new IllegalArgumentException(\"inner\");\n  }\n  public static void main(String[] a) {\n    try {\n      inner();\n    } catch (IllegalArgumentException e) {\n      throw new RuntimeException(\"outer\", e); // <-\n    }\n  }", "java.lang.RuntimeException: outer")
java("suppressed", _MAIN % "  static class R implements AutoCloseable {\n    public void close() { throw new IllegalStateException(\"closing\"); }\n  }\n  public static void main(String[] a) {\n    try (R r = new R()) {\n      throw new RuntimeException(\"body\"); // <-\n    }\n  }", "java.lang.RuntimeException: body")
java("custom", _MAIN % "  static class Own extends RuntimeException {\n    Own(String m) { super(m); }\n  }\n  public static void main(String[] a) {\n    throw new Own(\"mine\"); // <-\n  }", "Main$Own: mine")
java("lambda", "import java.util.List;\n" + _MAIN % "  public static void main(String[] a) {\n    List.of(1).forEach(x -> {\n      throw new RuntimeException(\"in a lambda\"); // <-\n    });\n  }", "java.lang.RuntimeException: in a lambda")
java("thread", _MAIN % "  public static void main(String[] a) throws Exception {\n    Thread t = new Thread(() -> { throw new RuntimeException(\"in a thread\"); }, \"worker\"); // <-\n    t.start();\n    t.join();\n    System.exit(1);\n  }", "java.lang.RuntimeException: in a thread")
java("stack-overflow", _MAIN % "  static int f(int n) {\n    return f(n + 1) + 1; // <-\n  }\n  public static void main(String[] a) {\n    f(0);\n  }", "java.lang.StackOverflowError")
java(
    "packages",
    {
        "src/com/acme/app/Main.java": "package com.acme.app;\n\npublic class Main {\n  public static void main(String[] a) {\n    new com.acme.lib.Loader().load();\n  }\n}\n",
        "src/com/acme/lib/Loader.java": "package com.acme.lib;\n\npublic class Loader {\n  public void load() {\n    throw new UnsupportedOperationException(\"deep\"); // <-\n  }\n}\n",
    },
    "java.lang.UnsupportedOperationException: deep",
    command=_java_build("com.acme.app.Main"),
)
java("compile-type", _MAIN % "  int x = \"a\"; // <-", "incompatible types: String cannot be converted to int", command=["javac", "-d", "/tmp", "Main.java"])
java("compile-syntax", _MAIN % "  int x = 1 // <-", "';' expected", command=["javac", "-d", "/tmp", "Main.java"])
java("compile-symbol", _MAIN % "  void f() {\n    missing(); // <- 1\n    int y = z; // <- 2\n  }", "cannot find symbol", "cannot find symbol", command=["javac", "-d", "/tmp", "Main.java"])
java("compile-launcher", _MAIN % "  public static void main(String[] a) {\n    undefined(); // <-\n  }", "cannot find symbol")
java("exit-code", _MAIN % "  public static void main(String[] a) { System.exit(3); }")
java(
    "junit4",
    {"MainTest.java": "import static org.junit.Assert.*;\nimport org.junit.Test;\n\npublic class MainTest {\n  @Test public void adds() {\n    assertEquals(3, 1 + 1); // <- 2\n  }\n  @Test public void breaks() {\n    throw new IllegalStateException(\"broken\"); // <- 1\n  }\n  @Test public void works() {}\n}\n"},
    "java.lang.IllegalStateException: broken",
    "java.lang.AssertionError: expected:<3> but was:<2>",
    command=_java_build("org.junit.runner.JUnitCore", "MainTest", path=JUNIT4),
)
java(
    "junit5",
    {"MainTest.java": "import static org.junit.jupiter.api.Assertions.*;\nimport org.junit.jupiter.api.Test;\n\nclass MainTest {\n  @Test void adds() {\n    assertEquals(3, 1 + 1); // <-\n  }\n  @Test void works() {}\n}\n"},
    "org.opentest4j.AssertionFailedError: expected: <3> but was: <2>",
    command=_java_build("org.junit.platform.console.ConsoleLauncher", "-c", "MainTest", "--disable-banner", path=JUNIT5),
)


def shell(name: str, text: str, *messages: str, program: str = "sh") -> None:
    """A shell script."""
    words = {"busybox": ["busybox", "sh"]}.get(program, [program])
    case(f"{program}-{name}", {"main.sh": text}, [*words, "main.sh"], *messages)


for _program, _found in (("sh", "%s: not found"), ("bash", "%s: command not found"), ("busybox", "%s: not found")):
    shell("not-found", "echo begin\nno-such-program  # <-\n", _found % "no-such-program", program=_program)
    shell("function", "f() {\n  missing-thing  # <-\n}\nf\nexit 9\n", _found % "missing-thing", program=_program)
shell("unset", "set -u\necho \"$nothing\"  # <-\n", "nothing: parameter not set")
shell("unset", "set -u\necho \"$nothing\"  # <-\n", "nothing: unbound variable", program="bash")
shell("required", "echo \"${name:?is needed}\"  # <-\n", "name: is needed")
shell("required", "echo \"${name:?is needed}\"  # <-\n", "name: is needed", program="bash")
shell("syntax", "if true; then\n  echo yes\n}  # <-\n", 'Syntax error: "}" unexpected (expecting "fi")')
shell("syntax", "if true; then\n  echo yes\n}  # <-\n", "syntax error near unexpected token `}'", program="bash")
shell("permission", "/etc/passwd  # <-\n", "/etc/passwd: Permission denied")
shell("redirect", "echo x > /nope/file  # <-\n", "cannot create /nope/file: Directory nonexistent")
shell("redirect", "echo x > /nope/file  # <-\nexit 1\n", "/nope/file: No such file or directory", program="bash")
shell("cd", "cd /nope || exit 1  # <-\n", "cd: can't cd to /nope")
shell("cd", "cd /nope || exit 1  # <-\n", "cd: /nope: No such file or directory", program="bash")
shell("exit-code", "exit 5\n")
shell("python-inside", "python3 - <<'END'\n1 / 0\nEND\n")


def compiled(name: str, file: str, text: str, command: list[str], *messages: str, **options: Any) -> None:
    """A program of a language whose places the language table tells."""
    case(name, {file: text}, [*command, file], *messages, **options)


_GCC = ["gcc", "-o", "/tmp/main"]
_GXX = ["g++", "-o", "/tmp/main"]
_ESBUILD = ["esbuild", "--bundle", "--log-level=warning", "--color=false", "--outfile=/tmp/main.mjs"]
compiled("c-undeclared", "main.c", "int main(void) {\n  return z;  // <-\n}\n", _GCC, "‘z’ undeclared (first use in this function)")
compiled("c-syntax", "main.c", "int main(void) {\n  int x = 1\n  return x;  // <-\n}\n", _GCC, "expected ‘,’ or ‘;’ before ‘return’")
compiled("c-include", "main.c", '#include "nothing.h"  // <-\nint main(void) { return 0; }\n', _GCC, "nothing.h: No such file or directory")
compiled("c-link", "main.c", "int f(void);\nint main(void) {\n  return f();  // <-\n}\n", ["gcc", "-g", "-o", "/tmp/main"], "undefined reference to `f'")
compiled("c-warning", "main.c", "int main(void) {\n  int x;  // <-\n  return 0;\n}\n", [*_GCC, "-Wall"], "unused variable ‘x’ [-Wunused-variable]", warnings=True)
compiled("cpp-member", "main.cpp", "#include <string>\nint main() {\n  std::string s;\n  return s.nothing();  // <-\n}\n", _GXX, "‘std::string’ {aka ‘class std::__cxx11::basic_string<char>’} has no member named ‘nothing’")
compiled("cpp-two", "main.cpp", "int main() {\n  int x = a;  // <- 1\n  return b;  // <- 2\n}\n", _GXX, "‘a’ was not declared in this scope", "‘b’ was not declared in this scope")
compiled("ruby-raise", "main.rb", "def f(x)\n  raise ArgumentError, 'boom'  # <-\nend\n\nf(1)\n", ["ruby"], "boom (ArgumentError)")
compiled("ruby-name", "main.rb", "puts 1\nnothing_here  # <-\n", ["ruby"], "undefined local variable or method `nothing_here' for main:Object (NameError)")
compiled("ruby-cause", "main.rb", "begin\n  Integer('x')\nrescue StandardError\n  raise 'outer'  # <-\nend\n", ["ruby"], "outer (RuntimeError)")
compiled("ruby-syntax", "main.rb", "x = [1,\ny = )  # <-\n", ["ruby"], "syntax error, unexpected ')'")
compiled("ruby-library", "main.rb", "require 'json'\n\nJSON.parse('{')  # <-\n", ["ruby"], "859: unexpected token at '{' (JSON::ParserError)")
compiled("ruby-warning", "main.rb", "warn 'careful', uplevel: 0  # <-\n", ["ruby"], "careful", warnings=True)
compiled("elixir-raise", "main.exs", "defmodule A do\n  def f(x), do: raise(\"boom #{x}\")  # <-\nend\nA.f(1)\n", ["elixir"], "RuntimeError: boom 1")
compiled("elixir-match", "main.exs", "{:ok, x} = {:error, 1}  # <-\nIO.puts(x)\n", ["elixir"], "MatchError: no match of right hand side value: {:error, 1}")
compiled("elixir-syntax", "main.exs", "x = 1\ny = )  # <-\n", ["elixir"], "SyntaxError: unexpected token: )")
compiled("elixir-undefined", "main.exs", "defmodule A do\n  def f, do: nothing_here(1)  # <-\nend\n", ["elixir"], "CompileError: undefined function nothing_here/1 (expected A to define such a function or for it to be imported, but none are available)")
compiled("elixir-no-place", "main.exs", "IO.puts(1)\nNothing.here()\n", ["elixir"])
compiled("elixir-warning", "main.exs", "defmodule A do\n  def f(x), do: 1  # <-\nend\n", ["elixir"], 'variable "x" is unused (if the variable is not meant to be used, prefix it with an underscore)', warnings=True)
compiled("esbuild-syntax", "app.ts", "const x: number = 1;\nconst y = = 2;  // <-\n", _ESBUILD, 'Unexpected "="')
compiled("esbuild-import", "app.ts", 'import { a } from "./nothing";  // <-\nconsole.log(a);\n', _ESBUILD, 'Could not resolve "./nothing"')
case("typescript-throw", {"app.ts": "interface A { x: number }\nfunction f(a: A): void {\n  throw new TypeError('boom');  // <-\n}\nf({ x: 1 });\n"}, ["sh", "-c", "esbuild app.ts --bundle --platform=node --sourcemap=inline --outfile=/tmp/a.js --log-level=warning && node --enable-source-maps /tmp/a.js"], "TypeError: boom")
