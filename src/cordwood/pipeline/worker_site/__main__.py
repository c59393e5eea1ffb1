"""Print the directory that goes in front of ``PYTHONPATH``."""

from cordwood.pipeline.worker_site import DIRECTORY

print(DIRECTORY)
