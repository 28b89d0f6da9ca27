"""Files of strangers: archives, names, patterns and directory trees in which nothing is believed."""
