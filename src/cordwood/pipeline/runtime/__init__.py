"""What every job runs on: the Spark session, Java, Python workers, tasks, the broker's API."""
