"""Kill the writer of a ledger with SIGKILL at points drawn at random, and look at what it left."""
