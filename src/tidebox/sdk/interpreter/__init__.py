"""Client of the interpreter service: sessions, runs, their logs, files and artifacts, and the admin routes.

Classes for asyncio do the work, and ``blocking`` has their facades for threads. It may import what ``sdk`` may.
"""
