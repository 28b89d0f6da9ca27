"""Files that outlive a box: run logs, artifacts, workspaces of sessions, and uploads on their way there.

Each kind is behind an interface (``LogStore``, ``BlobStore``, ``WorkspaceStore``), with one implementation on the local
disk. It may import ``audit`` and the shared modules of the broker, ``files`` and ``model``, but no runs or sandboxes.
"""
