"""What a release asks for is checked before anything is written."""

from pathlib import Path

import pytest

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.quarantine.releases import request_release
from pyspark_ckpt.storage.open import LocalStorage


@pytest.mark.parametrize("keys", ["ada", b"ada"])
def test_a_text_is_not_taken_for_the_keys_of_its_characters(
    tmp_path: Path, keys: str | bytes
) -> None:
    with pytest.raises(PlanError, match=r"operator 'op': .*'ada', which is one key: give a list"):
        request_release(LocalStorage(tmp_path), (), "op", keys)
    assert not [*tmp_path.iterdir()]
