"""The agent protocol without I/O: frames, messages, generations and both ends of a connection."""
