"""The asyncio skin of the agent protocol: programs, files and connections of one box, over one socket."""

from __future__ import annotations

from tidebox.runtime.link.execs import LinkExec, exec_request
from tidebox.runtime.link.files import LinkFiles
from tidebox.runtime.link.link import Link
from tidebox.runtime.link.tcp import TcpStream

__all__ = ["Link", "LinkExec", "LinkFiles", "TcpStream", "exec_request"]
