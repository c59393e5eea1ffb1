"""Opening a partition directory after any stop: what is sound, torn, corrupt or missing."""
