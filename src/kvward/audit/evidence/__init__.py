"""Evidence: from trials to what detectors say about them, cell by cell. Pure."""
