"""Files that jobs leave for the broker: found by name, claimed before they are checked."""
