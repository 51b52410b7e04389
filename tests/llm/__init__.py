"""A real model, optional: ``make test-llm``."""
