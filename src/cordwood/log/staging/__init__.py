"""Files that jobs leave for the broker: opened by name, and claimed before they are checked."""
