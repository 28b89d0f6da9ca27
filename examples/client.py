"""A client of a running server (start ``tidebox serve`` first); its address is the argument, if it has another one."""

import sys

from tidebox.errors import TideboxError
from tidebox.sdk import Client

with Client(*sys.argv[1:]) as client:
    result = client.run("print(input()[::-1])", stdin="edit")
    print(result.text, end="")

    # Output as it comes, of a program that is stopped as soon as it has said enough.
    with client.start("for n in range(10**9): print(n)") as execution:
        seen = ""
        for _stream, text in execution:
            seen += text
            if "\n3\n" in seen:
                break
    print(*seen.splitlines()[:4])

    try:
        client.run("fn main() {}", language="rust")
    except TideboxError as error:
        print(error.code, "- try again" if error.retryable else "- for good")
