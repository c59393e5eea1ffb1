"""The demo: two stories on a real broker and a real Spark session, with answers known beforehand.

``cdc`` and ``timecode`` make the data from a seed and keep the truth; ``stories`` plays them and
checks every step against it; ``picture`` draws the log's life. Nothing here is used by the product.
"""
