"""All that a generator's author needs to test: `outrider_check` and friends come with Outrider."""

from outrider_example import LastTime


def test_contract(outrider_check):
    outrider_check(LastTime)


def test_law(outrider_same_law):
    outrider_same_law(LastTime(), num_samples=2000)
