"""The task families: one file each, from examples to prediction files."""
