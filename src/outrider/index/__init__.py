"""Indexes over token ids, free of torch: n-grams, suffixes, memory across requests, corpora on disk."""
