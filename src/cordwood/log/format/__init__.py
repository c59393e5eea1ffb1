"""The files of a log as bytes and text: names, indexes, manifests, snapshots."""
