"""The rows of the settings tables: how one is declared, and those of topics. No I/O."""
