"""Caches written in place and rolled back: the target's, and that of a model that drafts."""
