"""The native runtime: boxes made of the Linux kernel's own means, namespaces, cgroups and seccomp filters.

They are made by the spawner, a process of its own that is driven over a socket. Modules here may import
the same as all of ``runtime``, and nothing of ``spawner``.
"""
