"""Mechanisms that InLine and SOFT are compared with, each written from its paper and in a file of its own."""
