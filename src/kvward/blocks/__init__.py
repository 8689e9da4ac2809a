"""WHAT is shared: the identity of a block, and who holds which block of memory."""
