"""The spawner: the program beside the server that makes boxes out of namespaces, cgroups, overlays and seccomp filters.

It keeps templates with warm interpreters, clones boxes from them, and ends every box when the server is gone;
``container`` is pid 1 where another runtime makes the box. It may import ``agent``, ``wire`` and the standard library
only, since it runs under the interpreters that boxes show, back to Python 3.9.
"""
