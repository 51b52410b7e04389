"""Measurements beside the code: ``make bench`` writes ``build/bench.json``."""
