"""The same two lines here and on a server: the server is the one that is named, by an argument or by TIDEBOX_URL.

python examples/anywhere.py http://127.0.0.1:8787
"""

import sys

import tidebox

server = sys.argv[1]

result = tidebox.run("print(input()[::-1])", stdin="edit", timeout=5, server=server)
print(result.text, end="")

with tidebox.Sandbox.create(server=server) as sandbox:
    print(sandbox.exec("echo ebb > words.txt; echo flow >> words.txt; wc -l < words.txt").text, end="")
