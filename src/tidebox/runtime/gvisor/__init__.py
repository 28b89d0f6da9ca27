"""The gvisor runtime: boxes on a kernel of their own, which is a program of this machine (runsc).

Each sandbox is started from an OCI bundle, with a cgroup around sentry, gofer and program. Besides the imports of all
of ``runtime``, modules here may import ``spawner.cgroups``, ``spawner.sweeping`` and ``spawner.steps``.
"""
