"""The command line: one module for each command, loaded when it is called."""
