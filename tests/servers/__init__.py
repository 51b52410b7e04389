"""Servers for tests and benchmarks. They run in processes of their own, on loopback only."""
