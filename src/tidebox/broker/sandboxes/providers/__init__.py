"""Where sandboxes come from: this server's own runtime, and other servers."""
