"""Sandboxes: bindings of scopes, access tokens, leases, the reaper, and processes and files inside.

A sandbox comes from a provider: this server's own runtime, or another server of which this one is a client. It may
import ``audit`` and the shared modules of the broker, but no runs or storage; ``providers`` alone may import the SDK.
"""
