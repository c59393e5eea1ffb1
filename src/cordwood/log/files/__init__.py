"""Open files, their modes, and everything that changes the disk."""
