"""REPLs: where the code that a root model writes is run."""
