"""Other engines: an engine's own hook on one side, a candidate generator on the other.

An engine's file imports its engine inside functions, and no torch.
"""
