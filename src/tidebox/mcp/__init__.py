"""The Model Context Protocol: Tidebox as tools that every agent can use. A client of a server through the SDK."""

import mcp_types  # noqa: F401

from tidebox.lean import bare_packages, deferred_models

# The protocol's package loads its client, its framework for servers and its authorization, and builds the models of
# every message in every revision: a third of what `tidebox mcp` takes to start. Used are its plain server, and a dozen
# of the messages.
bare_packages("mcp", "mcp.server")
with deferred_models():
    import mcp.server.lowlevel.server  # noqa: F401
