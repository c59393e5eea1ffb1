"""Open files, file modes, and every operation that changes the disk."""
