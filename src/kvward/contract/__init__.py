"""WRITE DOWN: what is guaranteed about cached state, and what others say about theirs."""
