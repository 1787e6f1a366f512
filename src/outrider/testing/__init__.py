"""What a candidate generator's author runs: lossless, law, faults. Used by Outrider's own tests.

from outrider.testing import check_generator
check_generator(MyIdea)
"""

from outrider.testing.checks import check_generator as check_generator
from outrider.testing.enumeration import ToyModel as ToyModel
from outrider.testing.enumeration import committed_law as committed_law
from outrider.testing.enumeration import distance as distance
from outrider.testing.enumeration import drafts as drafts
from outrider.testing.enumeration import outcomes as outcomes
from outrider.testing.generators import FAULTS as FAULTS
from outrider.testing.generators import MISCHIEF as MISCHIEF
from outrider.testing.generators import AdversarialGenerator as AdversarialGenerator
from outrider.testing.generators import OracleGenerator as OracleGenerator
from outrider.testing.generators import RandomGenerator as RandomGenerator
from outrider.testing.generators import ScriptedGenerator as ScriptedGenerator
from outrider.testing.law import assert_same_law as assert_same_law
from outrider.testing.law import g_test as g_test
from outrider.testing.lossless import assert_drafter_invariant as assert_drafter_invariant
from outrider.testing.lossless import assert_lossless as assert_lossless
from outrider.testing.models import tiny_prompts as tiny_prompts
from outrider.testing.models import tiny_target as tiny_target
