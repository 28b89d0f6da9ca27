"""A sandbox that lives on between programs, of a running server (start ``tidebox serve`` first)."""

import sys
from pathlib import Path

from tidebox.sdk import Access

# The sandbox belongs to a thread: every client that asks for that thread gets the same one, until it is released.
with Access(*sys.argv[1:]) as access, access.ensure("example-thread") as sandbox:
    # Files are streamed from and to paths, files and bytes; programs find them in their working directory.
    sandbox.files.upload("copies/example.py", Path(__file__))
    sandbox.files.upload("words.txt", b"ebb\nflow\n")
    print(*(f"{entry.name} ({entry.type})" for entry in sandbox.files.list()))
    result = sandbox.exec(["python3", "-c", "print(open('words.txt').read().split())"], timeout=10)
    print(result.text, end="")

    # A program that is followed, and answered.
    with sandbox.start("read name; echo hello, $name", stdin=True) as process:
        process.write("tide\n")
        print(*(chunk.data.decode() for chunk in process), end="")
        print("exit code", process.wait().exit_code)

    # A shell on a terminal.
    with sandbox.shell(terminal=(24, 80)) as shell:
        shell.write("wc -l < words.txt > count; exit\n")
        shell.wait()
    print(sandbox.files.download("count").decode().strip(), "words")
