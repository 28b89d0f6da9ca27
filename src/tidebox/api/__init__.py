"""The surfaces: each protocol that the server speaks over HTTP and WebSocket, with authentication and limits in front.

A surface parses requests into the domain model and renders answers from it; the broker does the work. The package may
import ``broker``, ``protocols``, ``model``, ``files``, ``errors`` and ``lean``, and never a runtime or a store.
"""
