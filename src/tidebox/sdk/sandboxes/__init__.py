"""Clients of sandboxes that live on between programs: grants for them, and their programs, terminals and files.

Classes for asyncio do the work, and ``blocking`` has their facades for threads. It may import what ``sdk`` may.
"""
