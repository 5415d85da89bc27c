"""The web surface: an HTTP API and pages for people who never open a terminal."""
