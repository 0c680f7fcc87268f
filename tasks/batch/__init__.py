"""The whole job in its order: sent, kept as it finishes, put back in the file's order, recorded."""
