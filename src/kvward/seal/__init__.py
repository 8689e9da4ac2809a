"""HOW state is protected: bytes in, bytes out."""
