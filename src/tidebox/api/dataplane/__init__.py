"""The normalized dataplane: programs, terminals and files of a live sandbox, for whoever holds a grant for it."""
