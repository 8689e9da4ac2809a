"""WHERE sealed state lives: a port, backends behind it, and the one way to their bytes."""
