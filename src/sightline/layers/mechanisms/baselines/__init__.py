"""Mechanisms that InLine and SOFT are compared with, each implemented from its paper, one file each."""
