"""Other libraries, each in its own virtual environment with pinned versions."""
