"""Shared by the kernels of all operators: launching, registration with torch, tiles, and the sum of partial sums."""
