"""What runtimes share whose boxes have our agent as their pid 1, with an interpreter of its own beside the image."""
