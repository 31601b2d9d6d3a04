"""The benchmark: methods side by side on the same prompts, and what can be said of the results."""
