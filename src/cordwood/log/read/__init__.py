"""Reading segments: everything here leaves the disk as it is."""
