"""Archives: write sealed records as bundles, verify the bundles and restore topics from them."""

from cordwood.pipeline.archive.job import ArchiveRequest, create_archive
from cordwood.pipeline.archive.restore import Restored, restore_archive

__all__ = ["ArchiveRequest", "Restored", "create_archive", "restore_archive"]
