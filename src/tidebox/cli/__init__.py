"""The ``tidebox`` command: runs programs here or on a server, starts servers, and manages, examines and measures them.

Each command is a module that is imported only when it is the one that was typed. It may import ``errors``, ``model``,
``untrusted_files``, ``config``, ``logs``, ``sdk``, ``embedded``, ``server``, ``mcp`` and ``lsp``; only ``__main__``
imports it.
"""
