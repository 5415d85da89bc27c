"""A run in words, for every surface: terminal, web, exports."""
