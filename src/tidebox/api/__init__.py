"""The surfaces: what comes in over the network is parsed here, and what goes out is rendered here."""
