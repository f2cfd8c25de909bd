"""The compressors, one file for each family, and how they are spelled."""
