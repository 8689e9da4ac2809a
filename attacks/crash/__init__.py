"""Kill writers with SIGKILL at points drawn at random, and look at what they left behind."""
