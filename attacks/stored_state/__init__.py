"""Everything that the owner of a store can do to what lies in it, done at random and counted."""
