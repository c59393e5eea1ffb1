"""The swap: staged segments replace live ones as a whole, once, and resumable after any crash."""
