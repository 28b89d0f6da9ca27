"""The docker runtime: boxes that are containers of a Docker or Podman engine.

The engine is spoken to over its HTTP API, on a socket or over TLS. Besides the imports of all of ``runtime``, modules
here may import the list of system calls (``spawner.seccomp``, ``spawner.syscall_tables``) for the seccomp profile.
"""
