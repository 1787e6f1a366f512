"""One accept rule a file. Each turns the target's logits over a tree into the tokens to commit."""
