"""Health of partitions: one registry of problems, used by everything that reports health."""
