"""Detection of tree crowns in aerial photographs."""
