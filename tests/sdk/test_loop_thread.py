"""The thread of a client for threads: it ends with the client, and is nobody's in another process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from tidebox.sdk.loop_thread import LoopThread

FORKED = """
import os
from tidebox.errors import TideboxError
from tidebox.sdk import Client
client = Client("http://127.0.0.1:1", api_key="x")
if not os.fork():
    try:
        client.run("pass")
    except TideboxError as error:
        os.write(1, type(error).__name__.encode())
    client.close()
    os._exit(0)
os.wait()
client.close()
"""

AT_EXIT = """
from tidebox.sdk import Client
class Late:
    def __init__(self):
        self.client = Client("http://127.0.0.1:1", api_key="x")
    def __del__(self):
        self.client.close()
late = Late()
late.itself = late
import gc; gc.disable()
"""


def test_a_loop_thread_without_references_ends() -> None:
    loop_thread = LoopThread()
    thread = loop_thread._there.thread
    assert thread in threading.enumerate()
    del loop_thread
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_a_client_of_another_process_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"ClientClosed")


def test_a_client_that_is_closed_while_the_interpreter_ends_keeps_nobody() -> None:
    assert subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, timeout=60).returncode == 0
