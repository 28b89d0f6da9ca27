"""The asyncio skin of the agent protocol: programs, files and connections of one box, over one socket.

Runtimes open a link to the agent of each box that has one. Modules here may import the same as all of ``runtime``: of
the protocol itself only ``wire``, and nothing of ``agent``.
"""

from __future__ import annotations

from tidebox.runtime.link.execs import LinkExec, exec_request
from tidebox.runtime.link.files import LinkFiles
from tidebox.runtime.link.link import Link
from tidebox.runtime.link.tcp import TcpStream

__all__ = ["Link", "LinkExec", "LinkFiles", "TcpStream", "exec_request"]
