"""The host loop as a user meets it: runs, resumes, faults, signals, several processes."""
