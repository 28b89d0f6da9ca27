"""Parts that runtimes share whose boxes have our agent as their pid 1, with an interpreter of its own beside the image.

They put the agent together, tell whose a box is, and move files in and out. Besides the imports of all of ``runtime``,
modules here may import ``spawner.seccomp`` and ``agent.tree_records``, which are data.
"""
