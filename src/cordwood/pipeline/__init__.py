"""The work on segments past the append, in PySpark: the only room that imports Spark.

Jobs here read segments, write their results and, last, a manifest under ``staging/<job>/``. They
never rename, change or delete a live file: Spark proposes, the broker disposes.
"""
