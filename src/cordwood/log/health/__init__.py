"""What is wrong with which partition: one registry that everything that reports health asks."""
