"""Sequences: the five tasks of the Long Range Arena, generated or read from the files as published."""
