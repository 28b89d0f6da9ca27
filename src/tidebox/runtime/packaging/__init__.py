"""Packages for boxes: resolved by uv and npm, fetched by their locks, unpacked as hostile archives, made into layers.

Nothing of a package runs on the host: resolvers read metadata only, archives are data, bytecode is compiled in a box.
Modules here may import the same as all of ``runtime``.
"""
