"""Language models: the protocol, the providers, and the lookup by ``provider/model``."""
