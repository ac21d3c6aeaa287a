"""Networks, distributions and statistics that agents are built from."""
