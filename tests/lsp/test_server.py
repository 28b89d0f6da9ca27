"""The language server, by a real client over stdio, with programs in real boxes on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from tests.lsp.editor import COMMAND, Editor
from tests.lsp.editor import editor as an_editor
from tests.patience import patient
from tidebox.lsp.workspace_scan import WorkspaceScanner
from tidebox.lsp.workspace_sync import WorkspaceSync
from tidebox.sdk import AsyncInterpreter

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILING = "def f(x):\n    return 1 / x\n\n\nif __name__ == '__main__':\n    print('working')\n    f(0)\n"
LIST = """import os
for top, _, names in os.walk('.'):
    for name in names:
        print(os.path.join(top, name)[2:])
"""


def read(uri: str) -> str:
    """A document on this machine."""
    return Path(urlsplit(uri).path).read_text()


def below(directory: Path) -> set[Path]:
    """Everything in a directory."""
    return set(directory.rglob("*"))


def errors(editor: Editor, uri: str) -> list[tuple[int, str]]:
    """(line that counts from 1, message) of what is marked in a document."""
    return [(each.range.start.line + 1, each.message) for each in editor.diagnostics.get(uri, [])]


async def refused(editor: Editor, command: str, argument: Any) -> JsonRpcException:
    with pytest.raises(JsonRpcException) as caught:
        await editor.execute(command, argument)
    return caught.value


async def printed(editor: Editor, **given: Any) -> set[str]:
    answer = await editor.run(**given)
    assert answer["phase"] == "completed", editor.output.get((answer["run_id"], "stderr"))
    return set(editor.output.get((answer["run_id"], "stdout"), "").split("\n")) - {""}


async def test_all_commands_are_offered_under_both_names(editor: Editor) -> None:
    assert editor.capabilities is not None
    assert editor.capabilities.execute_command_provider is not None
    assert set(editor.capabilities.execute_command_provider.commands) == {
        f"{prefix}.{name}" for prefix in ("tldw.sandbox", "tidebox") for name in ("run", "configure", "openArtifacts")
    }


async def test_a_failing_line_is_marked_and_the_mark_vanishes_when_it_works(editor: Editor) -> None:
    uri = editor.write("main.py", FAILING)
    editor.show(uri, FAILING)
    answer = await editor.execute("tldw.sandbox.run", {"uri": uri})
    assert {"run_id", "phase", "exit_code"} <= set(answer) <= {"run_id", "phase", "exit_code", "log_stream_url"}
    assert (answer["phase"], answer["exit_code"]) == ("failed", 1)
    (found,) = editor.diagnostics[uri]
    assert found.message == "ZeroDivisionError: division by zero"
    assert found.severity is types.DiagnosticSeverity.Error
    assert (found.range.start.line, found.range.start.character, found.range.end.character) == (1, 4, 16)
    assert [each.location.range.start.line for each in found.related_information or []] == [6]
    assert editor.output[answer["run_id"], "stdout"] == "working\n"
    assert "ZeroDivisionError" in editor.output[answer["run_id"], "stderr"]

    # What is shown runs, and not what is on the disk.
    editor.show(uri, FAILING.replace("f(0)", "f(1)"))
    answer = await editor.run(uri=uri)
    assert (answer["phase"], answer["exit_code"]) == ("completed", 0)
    assert editor.diagnostics[uri] == []


async def test_the_last_run_is_repeated_with_what_is_given_changed(editor: Editor) -> None:
    uri = editor.write("main.py", "import os, sys\nprint(os.environ.get('WHO'), sys.argv[1:])\n")
    command = ["python3", "main.py", "x"]
    assert await printed(editor, uri=uri, command=command, env={"WHO": "first"}) == {"first ['x']"}
    assert await printed(editor) == {"first ['x']"}
    assert await printed(editor, env={"WHO": "second"}) == {"second ['x']"}
    answer = await editor.execute("tldw.sandbox.run")
    assert editor.output[answer["run_id"], "stdout"] == "second ['x']\n"


async def test_a_key_that_is_not_known_is_an_error_that_names_it(editor: Editor) -> None:
    uri = editor.write("main.py", "print(1)\n")
    for command, argument, word in (
        ("tidebox.run", {"uri": uri, "comand": ["x"]}, "comand"),
        ("tldw.sandbox.run", {"uri": uri, "timeout_sec": "soon"}, "timeout_sec"),
        ("tidebox.configure", {"imagee": "x"}, "imagee"),
        ("tidebox.openArtifacts", {"run": "x"}, "run"),
        ("tidebox.run", {"uri": uri, "files": ["../secret"]}, "secret"),
        ("tidebox.run", {"uri": uri, "files": ["/etc/passwd"]}, "passwd"),
        ("tidebox.run", {"uri": uri, "files": [{"path": "x"}]}, "content"),
        ("tidebox.run", {"uri": editor.uri("nothing.py")}, "nothing.py"),
        ("tidebox.nothing", {}, "tidebox.nothing"),
        ("tidebox.run", "text", "object"),
    ):
        error = await refused(editor, command, argument)
        assert error.code == -32602, (command, argument)
        assert word in error.message


async def test_a_run_that_cannot_be_made_is_an_error(editor: Editor) -> None:
    uri = editor.write("main.py", "print(1)\n")
    error = await refused(editor, "tidebox.run", {"uri": uri, "runtime": "nothing"})
    assert error.code in (-32602, -32803)
    assert "runtime" in error.message


async def test_files_that_are_never_sent(editor: Editor, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = tmp_path / "folder"
    uri = editor.write("main.py", LIST)
    for name, text in {
        ".gitignore": "*.log\n/out/\nbuild/*\n!build/keep.txt\n",
        "app.log": "x",
        "out/x.txt": "x",
        "build/a.txt": "x",
        "build/keep.txt": "x",
        "sub/.gitignore": "local.txt\n!special.log\n",
        "sub/local.txt": "x",
        "sub/special.log": "x",
        "sub/fine.txt": "x",
        ".git/config": "x",
        "node_modules/lib/index.js": "x",
        "sub/__pycache__/x.txt": "x",
        "large.txt": "x" * 1_100_000,
        "picture.png": "x",
    }.items():
        editor.write(name, text)
    (folder / "data.bin2").write_bytes(b"ab\0cd")
    (folder / "link.txt").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    always = {"main.py", ".gitignore", "build/keep.txt", "sub/.gitignore", "sub/special.log", "sub/fine.txt"}
    editor.notices.clear()
    assert await printed(editor, uri=uri) == always
    said = "\n".join(editor.notices)
    assert "large.txt" in said
    assert "data.bin2" in said
    assert "picture.png" in said
    listed = ["data.bin2", "picture.png", "large.txt", {"path": "given/x.txt", "content": "x"}]
    assert await printed(editor, uri=uri, files=listed) == always | {
        "data.bin2",
        "picture.png",
        "large.txt",
        "given/x.txt",
    }
    for name in ("link.txt", "linked/secret.txt", "fifo", "app.log", ".git/config", "node_modules/lib/index.js"):
        error = await refused(editor, "tidebox.run", {"uri": uri, "files": [name]})
        assert error.code == -32602


async def test_of_a_large_folder_only_what_changed_is_sent(editor: Editor, tmp_path: Path) -> None:
    uri = editor.write("main.py", LIST)
    for index in range(3):
        editor.write(f"data/{index}.txt", f"{index}" * 900_000)
    everything = {"main.py", "data/0.txt", "data/1.txt", "data/2.txt"}
    assert await printed(editor, uri=uri) == everything
    show = "print(open('data/1.txt').read(3), open('main.py').read(5))\n"
    editor.show(uri, show)
    editor.write("data/1.txt", "new" * 300_000)
    assert await printed(editor, uri=uri) == {"new print"}
    # What a program leaves is not there for the next one.
    editor.show(uri, "open('left.txt', 'w').write('x')\nopen('data/0.txt', 'w').write('spoiled')\n")
    assert await printed(editor, uri=uri) == set()
    editor.show(uri, LIST + "print(len(open('data/0.txt').read()))\n")
    assert await printed(editor, uri=uri) == everything | {"900000"}
    # Nor is what was taken away here.
    (tmp_path / "folder" / "data/2.txt").unlink()
    assert await printed(editor, uri=uri) == (everything - {"data/2.txt"}) | {"900000"}


async def test_output_is_cut_and_the_rest_is_linked(editor: Editor) -> None:
    uri = editor.write("main.py", "import sys\nsys.stdout.write('é' * 150_000)\nsys.stderr.write('small')\n")
    editor.notices.clear()
    answer = await editor.run(uri=uri)
    shown = editor.output[answer["run_id"], "stdout"]
    assert 99_990 <= len(shown.encode()) <= 100_000
    assert set(shown) == {"é"}
    assert editor.output[answer["run_id"], "stderr"] == "small"
    (notice,) = editor.notices
    assert "stdout cut at 100 KB" in notice
    assert "é" * 150_000 in read(notice.split()[-1])


async def test_the_reason_is_shown_where_there_is_no_frame(editor: Editor) -> None:
    uri = editor.write("main.py", "import sys\nprint('x')\nsys.exit(3)\n")
    await editor.run(uri=uri)
    assert errors(editor, uri) == [(1, "it ended with an error (exit code 3)")]
    (found,) = editor.diagnostics[uri]
    assert found.code_description is not None
    assert "x" in read(found.code_description.href)

    editor.show(uri, "import time\ntime.sleep(60)\n")
    answer = await editor.run(uri=uri, timeout_sec=1)
    assert answer["phase"] == "timed_out"
    assert "ran out of time" in errors(editor, uri)[0][1]

    editor.show(uri, "a = []\nwhile True:\n    a.append(bytearray(10_000_000))\n")
    await editor.execute("tidebox.configure", {"uri": uri, "resources": {"memory_mb": 64}})
    await editor.run(uri=uri)
    assert "memory" in errors(editor, uri)[0][1].lower()
    assert await editor.execute("tidebox.configure", {"uri": uri, "resources": None}) == {}

    editor.show(uri, "import json\njson.loads('{')\n")
    await editor.run(uri=uri, command=["python3", "-c", "import json; json.loads('{')"])
    assert any("in the sandbox at /usr/lib/" in message for _, message in errors(editor, uri))


async def test_a_hostile_trace_marks_opens_and_makes_nothing_outside(editor: Editor, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("x\n")
    (tmp_path / "folder" / "escape.py").symlink_to(outside)
    names = [str(outside), "../outside.py", "/workspace/../outside.py", "/etc/passwd", "escape.py", "new.py"]
    frames = "".join(f'  File "{name}", line 1, in f\n' for name in names)
    trace = f"Traceback (most recent call last):\n{frames}ValueError: look there\n"
    uri = editor.write("main.py", f"import sys\nsys.stderr.write({trace!r})\nsys.exit(1)\n")
    before = below(tmp_path)
    editor.published.clear()
    editor.documents_shown.clear()
    await editor.run(uri=uri)
    assert editor.published == [uri]
    assert errors(editor, uri)[0][0] == 1
    assert editor.documents_shown == []
    assert below(tmp_path) == before


async def test_artifacts_are_listed_copied_and_opened(editor: Editor) -> None:
    uri = editor.write("main.py", "import os\nos.mkdir('out')\nopen('out/a.txt', 'w').write('made')\n")
    answer = await editor.run(uri=uri, capture_patterns=["out/**"])
    editor.documents_shown.clear()
    listed = await editor.execute("tldw.sandbox.openArtifacts", {"run_id": answer["run_id"]})
    (item,) = listed["items"]
    assert (item["path"], item["size"]) == ("out/a.txt", 4)
    assert read(item["uri"]) == "made"
    shown = await editor.until(lambda: editor.documents_shown)
    assert shown[0].uri == listed["uri"]
    assert "out/a.txt" in read(listed["uri"])
    assert (await editor.execute("tidebox.openArtifacts"))["run_id"] == answer["run_id"]
    for run_id in ("../../etc", "run-none"):
        await refused(editor, "tidebox.openArtifacts", {"run_id": run_id})


async def test_defaults_of_a_folder_are_kept_outside_of_it(editor: Editor, tmp_path: Path) -> None:
    uri = editor.write("main.py", "import os\nprint(os.environ.get('WHO'), os.environ.get('OTHER'))\n")
    given = {"uri": uri, "env": {"WHO": "default", "OTHER": "kept"}, "timeout_sec": 20}
    kept = await editor.execute("tidebox.configure", given)
    assert kept["timeout_sec"] == 20
    assert await printed(editor, uri=uri) == {"default kept"}
    assert await printed(editor, uri=uri, env={"WHO": "run"}) == {"run kept"}
    kept = await editor.execute("tidebox.configure", {"uri": uri, "timeout_sec": None})
    assert "timeout_sec" not in kept
    assert kept["env"]["WHO"] == "default"
    assert os.listdir(tmp_path / "folder") == ["main.py"]


async def test_a_cancelled_progress_kills_the_run(editor: Editor) -> None:
    uri = editor.write("main.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    editor.progress.clear()
    running = asyncio.ensure_future(editor.run(uri=uri))
    token, begin = await editor.until(lambda: editor.progress[0] if editor.progress else None)
    assert begin["cancellable"]
    await editor.until(lambda: editor.started and (editor.started[-1].run_id, "stdout") in editor.output)
    editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token))
    answer = await running
    assert answer["phase"] == "killed"
    assert editor.diagnostics.get(uri, []) == []
    assert editor.progress[-1][0] == token


async def test_a_cancelled_request_kills_the_run(editor: Editor) -> None:
    uri = editor.write("main.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    editor.started.clear()
    params = types.ExecuteCommandParams(command="tidebox.run", arguments=[{"uri": uri}])
    request = editor.client.protocol.send_request_async(types.WORKSPACE_EXECUTE_COMMAND, params, msg_id="to-cancel")
    started = await editor.until(lambda: editor.started)
    editor.client.protocol.notify(types.CANCEL_REQUEST, types.CancelParams(id="to-cancel"))
    with pytest.raises(JsonRpcException) as caught:
        await request
    assert caught.value.code == -32800
    # It is over on the server too: what it left can be listed.
    listed = await editor.execute("tidebox.openArtifacts", {"run_id": started[0].run_id})
    assert listed["items"] == []


async def test_lenses_are_over_files_main_blocks_and_tests(editor: Editor) -> None:
    def shown(lenses: list[types.CodeLens]) -> list[tuple[int, Any]]:
        return [(each.range.start.line, each.command.arguments[0]) for each in lenses if each.command]  # type: ignore[index]

    main = editor.write("main.py", FAILING)
    editor.show(main, FAILING)
    assert shown(await editor.lenses(main)) == [
        (0, {"uri": main}),
        (4, {"uri": main, "command": ["python3", "main.py"]}),
    ]
    text = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.fail('no')\n"
    test = editor.write("tests/test_it.py", text)
    editor.show(test, text)
    lenses = await editor.lenses(test)
    assert [each.range.start.line for each in lenses] == [0, 3, 4]
    await editor.execute(lenses[2].command.command, lenses[2].command.arguments[0])  # type: ignore[union-attr,index]
    assert errors(editor, test) == [(6, "AssertionError: no")]
    editor.show(test, text.replace("self.fail('no')", "pass"))
    await editor.execute(lenses[0].command.command, lenses[0].command.arguments[0])  # type: ignore[union-attr,index]
    assert errors(editor, test) == []


async def test_a_document_without_a_file_runs(editor: Editor) -> None:
    uri = "untitled:Untitled-1"
    editor.show(uri, "x = 1\nraise ValueError('unsaved')\n")
    await editor.run(uri=uri)
    assert errors(editor, uri) == [(2, "ValueError: unsaved")]


async def test_of_a_file_outside_every_folder_only_it_is_sent(editor: Editor, tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.mktemp("elsewhere")
    (directory / "main.py").write_text(LIST)
    (directory / "private.txt").write_text("x")
    assert await printed(editor, uri=(directory / "main.py").as_uri()) == {"main.py"}


async def test_other_languages_are_marked_too(editor: Editor) -> None:
    script = editor.write("run.sh", "echo begin\nno-such-program\n")
    await editor.run(uri=script)
    assert errors(editor, script) == [(2, "no-such-program: not found")]
    source = editor.write("app.js", "function f() {\n  throw new Error('boom');\n}\nf();\n")
    await editor.run(uri=source)
    assert errors(editor, source) == [(2, "Error: boom")]


@pytest.mark.parametrize(
    ("tool", "name", "text", "line", "words"),
    [
        (
            "go",
            "main.go",
            "package main\n\nfunc main() {\n\tvar a []int\n\tprintln(a[3])\n}\n",
            5,
            "index out of range",
        ),
        ("esbuild", "app.ts", "const x: number = 1;\nthrow new Error('boom');\n", 2, "Error: boom"),
        ("esbuild", "app.ts", "const x: number = 1;\nconst y = = 2;\n", 2, 'Unexpected "="'),
        ("gcc", "main.c", "int main(void) {\n  return nothing;\n}\n", 2, "nothing’ undeclared"),  # noqa: RUF001
        ("elixir", "main.exs", 'IO.puts("x")\nraise "boom"\n', 2, "RuntimeError: boom"),
        ("ruby", "main.rb", "puts 1\nraise 'boom'\n", 2, "boom (RuntimeError)"),
    ],
)
async def test_a_file_runs_by_its_language(
    editor: Editor, tool: str, name: str, text: str, line: int, words: str
) -> None:
    if shutil.which(tool, path="/usr/bin") is None:
        pytest.skip(f"there is no {tool}")
    uri = editor.write(name, text)
    assert (await editor.run(uri=uri))["phase"] == "failed"
    ((found, message),) = errors(editor, uri)
    assert found == line
    assert words in message


async def test_where_nothing_has_a_language_its_own_program_is_tried(editor: Editor) -> None:
    if shutil.which("Rscript") is not None:
        pytest.skip("there is R")
    editor.notices.clear()
    answer = await editor.run(uri=editor.write("main.R", "print(1)\n"))
    assert answer["phase"] == "failed"
    assert any("nothing here has r;" in notice and "Rscript main.R" in notice for notice in editor.notices)


@pytest.mark.skipif(shutil.which("go", path="/usr/bin") is None, reason="there is no Go")
async def test_tests_in_go_run(editor: Editor) -> None:
    editor.write("go.mod", "module calc\n\ngo 1.19\n")
    text = 'package calc\n\nimport "testing"\n\nfunc TestIt(t *testing.T) {\n\tt.Fatal("no")\n}\n'
    uri = editor.write("calc_test.go", text)
    await editor.run(uri=uri)
    assert errors(editor, uri) == [(6, "no")]


async def test_tests_in_typescript_run(editor: Editor) -> None:
    text = (
        "import { test } from 'node:test';\n"
        "const x: number = 1;\n"
        "test('it works', () => {\n"
        "  throw new Error('no');\n"
        "});\n"
    )
    uri = editor.write("sub/it.test.ts", text)
    editor.show(uri, text, "typescript")
    lenses = await editor.lenses(uri)
    assert [(each.range.start.line, each.command.title) for each in lenses if each.command] == [
        (0, "Run all tests in Sandbox"),
        (2, "Run test in Sandbox"),
    ]
    for lens in lenses:
        assert lens.command is not None
        assert lens.command.arguments is not None
        await editor.execute(lens.command.command, lens.command.arguments[0])
        assert (4, "no") in errors(editor, uri)
    editor.show(uri, text.replace("throw new Error('no')", "return"), "typescript")
    await editor.run(uri=uri)
    assert errors(editor, uri) == []


async def test_a_document_behind_a_link_is_not_sent_with_another(editor: Editor, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (tmp_path / "folder" / "link").symlink_to(outside)
    (tmp_path / "folder" / "own.txt").symlink_to(outside / "secret.txt")
    uri = editor.write("main.py", LIST)
    for name in ("link/secret.txt", "own.txt"):
        editor.show(editor.uri(name), "secret, as the editor shows it", "plaintext")
    assert await printed(editor, uri=uri) == {"main.py"}


async def test_two_runs_go_on_at_once(editor: Editor) -> None:
    text = "import sys\nprint('up', flush=True)\nimport time\ntime.sleep(float(sys.argv[1]))\n1 / int(sys.argv[2])\n"
    first, second = editor.write("a.py", text), editor.write("b.py", text)
    editor.started.clear()
    slow = asyncio.ensure_future(editor.run(uri=first, command=["python3", "a.py", "600", "1"], timeout_sec=60))
    await editor.until(lambda: editor.started)
    answer = await editor.run(uri=second, command=["python3", "b.py", "0", "0"])
    assert answer["phase"] == "failed"
    assert errors(editor, second) == [(5, "ZeroDivisionError: division by zero")]
    assert not slow.done()
    token = next(token for token, value in reversed(editor.progress) if value["kind"] == "begin" and token)
    for begun in {token for token, value in editor.progress if value["kind"] == "begin"} | {token}:
        editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(begun))
    assert (await slow)["phase"] == "killed"


async def test_a_run_that_waits_for_its_turn_can_be_cancelled(editor: Editor) -> None:
    for index in range(2):
        editor.write(f"data/{index}.txt", f"{index}" * 900_000)
    uri = editor.write("main.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    editor.started.clear()
    editor.progress.clear()
    first = asyncio.ensure_future(editor.run(uri=uri, timeout_sec=50))
    await editor.until(lambda: editor.started)
    second = asyncio.ensure_future(editor.run(uri=uri, timeout_sec=50))
    begun = await editor.until(lambda: [token for token, value in editor.progress if value["kind"] == "begin"][1:])
    editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(begun[0]))
    with pytest.raises(JsonRpcException) as caught:
        await second
    assert caught.value.code == -32800
    assert not first.done()
    token = editor.progress[0][0]
    editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token))
    assert (await first)["phase"] == "killed"
    assert len(editor.started) == 1
    # Its turn is nobody's now.
    editor.show(uri, "print('next')\n")
    assert await printed(editor, uri=uri) == {"next"}


async def test_a_document_of_any_language_runs_by_a_command(editor: Editor) -> None:
    uri = "untitled:Untitled-7"
    editor.show(uri, "plain words", "plaintext")
    assert await printed(editor, uri=uri, command=["cat", "${file}"]) == {"plain words"}
    assert (await refused(editor, "tidebox.run", {"uri": uri})).code == -32602


async def test_all_of_the_output_can_be_read(editor: Editor) -> None:
    uri = editor.write("main.py", "import sys\nprint('x' * 200_000 + 'end')\nprint('small', file=sys.stderr)\n")
    answer = await editor.run(uri=uri)
    assert editor.ended[-1].cut == ["stdout"]

    async def read_output(**params: Any) -> Any:
        async with asyncio.timeout(patient(60)):
            return await editor.client.protocol.send_request_async("tidebox/readOutput", params)

    whole = await read_output(run_id=answer["run_id"], stream="stdout")
    assert whole.text == "x" * 200_000 + "end\n"
    assert whole.cut is False
    assert (await read_output(run_id=answer["run_id"], stream="stderr")).text == "small\n"
    for params in (
        {"run_id": answer["run_id"], "stream": "both"},
        {"run_id": answer["run_id"]},
        {"run_id": "../../etc", "stream": "stdout"},
        {"run_id": "run-none", "stream": "stdout"},
    ):
        with pytest.raises(JsonRpcException) as caught:
            await read_output(**params)
        assert caught.value.code in (-32602, -32803)


async def test_an_editor_that_leaves_kills_its_run(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    opened = Editor(tmp_path)
    await opened.start(own=False)
    running = asyncio.ensure_future(opened.run(uri=(tmp_path / "main.py").as_uri()))
    # An editor that knows nothing of ours has the output in its log.
    await opened.until(lambda: "up" in opened.logged)
    server = opened.client._server
    assert server is not None
    assert server.stdin is not None
    server.stdin.close()
    assert await server.wait() == 1
    running.cancel()
    await opened.client.stop()  # type: ignore[no-untyped-call]


async def test_with_a_server_the_run_has_a_page(tmp_path: Path, start_server: Any) -> None:
    server = start_server()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "main.py").write_text("print('x' * 200_000)\n1 / 0\n")
    uri = (folder / "main.py").as_uri()
    env = {"TIDEBOX_API_KEY": server.key, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    async with an_editor(folder, "--server", server.url, env=env) as opened:
        answer = await opened.run(uri=uri)
        page = f"{server.url}/webui/sandbox/runs/{answer['run_id']}"
        assert errors(opened, uri) == [(2, "ZeroDivisionError: division by zero")]
        assert opened.diagnostics[uri][0].code_description == types.CodeDescription(page)
        assert opened.ended[-1].url == page
        assert page in opened.notices[-1]
        listed = await opened.execute("tidebox.openArtifacts")
        assert listed["url"] == page
        shown = await opened.until(lambda: opened.documents_shown)
        assert (shown[0].uri, shown[0].external) == (page, True)
    assert opened.client._server is not None
    assert opened.client._server.returncode == 0


async def test_what_did_not_change_is_not_sent_again(tmp_path: Path, start_server: Any) -> None:
    server = start_server()
    folder = tmp_path / "folder"
    folder.mkdir()
    for index in range(3):
        (folder / f"{index}.txt").write_text(f"{index}" * 900_000)
    scanner = WorkspaceScanner(str(folder))
    async with AsyncInterpreter(server.url, api_key=server.key) as client:
        sync = WorkspaceSync(client, scanner)
        for changed, files in ((None, 4), (None, 0), ("1.txt", 1)):
            if changed is not None:
                (folder / changed).write_text("changed" * 100_000)
            async with sync.run_files(scanner.scan({"main.py": b"x"}), {}) as synced:
                assert synced.sent_files == files
        await sync.close()
        assert (await client.list_sessions()).items == ()


async def test_messages_that_are_none_are_answered_or_end_it(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None

    async def answer(body: bytes) -> Any:
        server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # type: ignore[union-attr]
        header = await server.stdout.readuntil(b"\r\n\r\n")  # type: ignore[union-attr]
        length = int(header.split(b":")[1].split(b"\r\n")[0])
        return json.loads(await server.stdout.readexactly(length))  # type: ignore[union-attr]

    def request(method: str, params: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()

    async with asyncio.timeout(patient(100)):
        for body, code in (
            (request("workspace/executeCommand", {"command": 5}), -32602),
            (request("workspace/executeCommand", {"command": "tidebox.run"}), -32602),
            (request("no/such/method", {}), -32601),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": []}', None),
        ):
            refused = await answer(body)
            assert refused["id"] == 1
            assert "result" not in refused
            assert code is None or refused["error"]["code"] == code
        # No message at all: the client is none of this protocol.
        server.stdin.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await server.wait() == 1
