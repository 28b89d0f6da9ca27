"""The language server: runs what the editor shows in a box, and marks where it failed. A client of the SDK."""
