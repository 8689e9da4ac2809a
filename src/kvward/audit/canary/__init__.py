"""Code words, the codebook of sessions, and the glass-box model that shows what it attends to."""
