"""Recovery of a partition directory after any stop: sound, torn, corrupt and missing records."""
