"""Archives: write sealed records as bundles, verify the bundles and restore topics from them."""
