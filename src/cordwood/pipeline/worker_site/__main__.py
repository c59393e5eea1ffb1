"""Print the directory to prepend to ``PYTHONPATH``."""

from cordwood.pipeline.worker_site import DIRECTORY

print(DIRECTORY)
