"""Messages of the normalized dataplane: programs, terminals and files of a live sandbox."""
