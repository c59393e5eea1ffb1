"""All jobs that run on Spark; the only package that imports PySpark.

Jobs read segments and write their results under ``staging/<job>/``; compaction writes a manifest
there last. Jobs never rename, change or delete a live file: the broker verifies staged results and
applies them.
"""
