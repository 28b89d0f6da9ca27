"""From what a program printed to where it failed. No I/O; what is read is hostile, so every step is linear in it."""
