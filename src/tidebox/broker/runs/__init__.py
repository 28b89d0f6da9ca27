"""Runs: admission, the queue, the worker of each run, its log with readers, its files, and the sessions of runs.

A run is journaled (in the store, found again after a restart) or ephemeral (nothing of it is stored). It may import
``storage``, ``audit`` and the shared modules of the broker, but no sandboxes.
"""
