"""The interpreter service of a running server (`tidebox serve`): a session with files, a run, its log and artifacts.

Give the server's address as the argument if it is not the default one.
"""

import sys

from tidebox.sdk import Interpreter, LogChunk, RunEnd

PROGRAM = b"""
words = open("words.txt").read().split()
for number, word in enumerate(words): print(number, word, flush=True)
open("count.txt", "w").write(str(len(words)))
"""

with Interpreter(*sys.argv[1:]) as client:
    session = client.create_session(base_image="python:3.11-slim", memory=128 * 1024 * 1024)
    client.upload_files(session.id, {"count.py": PROGRAM, "words.txt": b"ebb flow tide"})

    # Follow a run: the log goes on by itself when a connection is lost.
    run = client.start_run(["python", "count.py"], session_id=session.id, artifacts=["*.txt"], timeout=20)
    with client.stream_log(run.id) as log:
        for entry in log:
            if isinstance(entry, LogChunk):
                print(entry.data.decode(), end="")
            elif isinstance(entry, RunEnd):
                print(entry.phase.value, entry.exit_code)
    print([artifact.path for artifact in client.list_artifacts(run.id).items])
    print(client.download_artifact(run.id, "count.txt").decode(), "words")

    # Or run to the end, and take all it printed.
    print(client.run(["sh", "-c", "ls | tr a-z A-Z"], session_id=session.id).text, end="")
    client.delete_session(session.id)
