"""Collects what ``cordwood doctor`` looks at; ``decide.doctor`` says what it means.

Changes nothing: ports are bound and released at once, and the probe of the disk has no name.
"""
