"""File formats of the log as bytes and text: names, indexes, checkpoints, snapshots, manifests."""
