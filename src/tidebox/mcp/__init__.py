"""The Model Context Protocol: Tidebox as tools that every agent can use. A client of a server through the SDK."""
