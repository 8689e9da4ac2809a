"""Evidence bundles that somebody has changed, laid before what verifies them."""
