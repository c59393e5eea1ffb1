"""ARCHIVE: bundles of sealed records, written, verified and restored."""
