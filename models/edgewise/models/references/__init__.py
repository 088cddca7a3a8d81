"""Models named by where they lie (`hf:...`, `oci:...`): from such a name to a catalog entry with every file pinned."""
