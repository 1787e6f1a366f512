"""One accept rule a file. Each turns the target's logits over a tree into the tokens to commit."""

from outrider.verification.choose import available_verifiers as available_verifiers
from outrider.verification.choose import get_verifier as get_verifier
from outrider.verification.noise import keyed_choice as keyed_choice
from outrider.verification.noise import keyed_noise as keyed_noise
from outrider.verification.step import Row as Row
from outrider.verification.step import Stopping as Stopping
from outrider.verification.step import Verifier as Verifier
from outrider.verification.step import warped as warped
