"""Drafters: sources of draft nodes."""
