"""A round without a model: propose, accept along a known continuation, update."""

import numpy as np

from outrider.types import Context, Verification


def walk(candidates, future):
    """Nodes of the path that `future` takes through the tree."""
    path, parent = [], -1
    for token in future:
        node = next(
            (
                i
                for i in range(len(candidates))
                if candidates.parents[i] == parent and candidates.tokens[i] == token
            ),
            None,
        )
        if node is None:
            break
        path.append(node)
        parent = node
    return path


def check(candidates, budget):
    assert len(candidates) <= budget
    siblings = list(zip(candidates.parents.tolist(), candidates.tokens.tolist(), strict=True))
    assert len(set(siblings)) == len(siblings), "a token appears twice among siblings"
    if candidates.probabilities is not None:
        assert ((candidates.probabilities >= 0) & (candidates.probabilities <= 1)).all()
    if candidates.sources:
        assert len(candidates.sources) == len(candidates)


def decode(generator, prompt, output, budget=16, top=None):
    """Commit all of `output`, as a greedy target would; return the number of rounds.

    `top(ids)` gives the (k,) largest tokens and their logits after `ids`, where the generator wants them.
    """
    ids = np.asarray(prompt, np.int64)
    output = np.asarray(output, np.int64)
    generator.reset(ids)
    done = rounds = 0
    while done < output.size:
        context = Context(np.concatenate([ids, output[:done]]), ids.size, output.size - done)
        candidates = generator.propose(context, budget)
        check(candidates, budget)
        path = walk(candidates, output[done:-1] if done < output.size else [])
        committed = output[done : done + len(path) + 1]
        tokens = logits = None
        if top is not None:
            rows = [top(context.ids)]
            for node in range(len(candidates)):
                above = []
                at = node
                while at >= 0:
                    above.append(int(candidates.tokens[at]))
                    at = int(candidates.parents[at])
                rows.append(top(np.concatenate([context.ids, np.asarray(above[::-1], np.int64)])))
            tokens = np.array([row[0] for row in rows], np.int64)
            logits = np.array([row[1] for row in rows], np.float32)
        generator.update(
            Verification(committed, len(path), candidates, np.asarray(path, np.int64), tokens, logits)
        )
        done += committed.size
        rounds += 1
    return rounds
