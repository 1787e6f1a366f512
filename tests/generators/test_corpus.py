"""What documents say is proposed; alone, and in the default's tree."""

import numpy as np
import pytest

from outrider.contract import get
from outrider.errors import FileFormatError, OptionError
from outrider.index.corpus import Corpus, build
from outrider.testing import check_generator
from tests.generators.helpers import decode

FromCorpus, Auto = get("corpus"), get("auto")
TEXT = np.random.default_rng(0).permutation(300) % 150


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "c"
    build([TEXT], path, tokenizer="t")
    return path


def test_what_the_documents_say_comes_in_few_rounds(path):
    generator = FromCorpus(path)
    assert decode(generator, TEXT[:10], TEXT[10:]) < 60
    assert decode(generator.fork(), TEXT[:10], TEXT[10:]) < 60
    rng = np.random.default_rng(1)
    assert decode(generator, rng.integers(0, 150, 9), rng.integers(0, 150, 50)) > 30


def test_the_default_takes_a_corpus_and_a_memory(path, tmp_path):
    alone = decode(Auto(), TEXT[:10], TEXT[10:])
    assert decode(Auto(corpus=path), TEXT[:10], TEXT[10:]) < alone / 2
    memory = tmp_path / "m"
    for expected in (False, True):
        generator = Auto(memory=memory)
        assert (decode(generator, TEXT[:10], TEXT[10:]) < alone / 2) is expected
        generator.flush()


def test_it_is_refused_by_name(path):
    with pytest.raises(OptionError, match="outrider memory build"):
        FromCorpus()
    with pytest.raises(FileFormatError, match="tokenizer"):
        FromCorpus(path, tokenizer="other")
    with pytest.raises(FileFormatError, match="there is no"):
        FromCorpus(path.with_name("missing"))


def test_it_owes_the_loop_nothing(tmp_path):
    build([np.random.default_rng(0).integers(0, 32, 2000)], tmp_path / "c")
    corpus = Corpus(tmp_path / "c")
    check_generator(lambda: FromCorpus(corpus), remembers=True, max_new_tokens=8)
