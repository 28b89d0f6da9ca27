"""Messages of the protocols that the server speaks, as data: servers and clients share one definition of each."""
