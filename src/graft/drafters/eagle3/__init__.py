"""EAGLE-3: one decoder layer over the target's features drafts the next tokens."""
