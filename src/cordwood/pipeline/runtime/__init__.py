"""The runtime of every Spark job: session, Java, Python workers, tasks, and the broker's API."""
