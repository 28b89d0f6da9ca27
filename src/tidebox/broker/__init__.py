"""The broker: what every surface talks to. Runs and sandboxes of all users, within their quotas, logged and audited.

Its packages are ``audit``, ``storage`` above it, ``runs`` above both, and ``sandboxes`` beside ``runs``; modules here
are those that several of them share, and ``broker``, which puts the doors of runs together. It may import ``model``,
``errors``, ``files`` and the interfaces of store, runtime and cluster, never an implementation of those or a surface.
"""
