"""The demo: two stories on a real broker and a real Spark session, with known expected results.

``cdc`` and ``timecode`` generate the data and the expected results from a seed. ``stories`` plays
the stories and checks every step against them. ``picture`` draws the log's size over the steps.
Never imported by the broker.
"""
