"""Errors of seed files name the file and the entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.seed_file import SeedError, read_seed


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("topic = {}", "'topic' is unknown; did you mean 'topics'?"),
        ("[topics.a]\nrecord = []", "topics.a: 'record' is unknown; did you mean 'records'?"),
        ("[topics.a]\nrecords = 'x'", "topics.a.records must be a list"),
        ("[topics.a]\nrecords = [1]", "topics.a.records.0: must be a table, not 1"),
        ("[topics.a]\nrecords = [{valeu = 'x'}]", "topics.a.records.0: 'valeu' is unknown"),
        ("[topics.a]\nrecords = [{value = [2020-01-01]}]", "write it as text"),
        ("[users.a]\nmechanisms = []", 'users.a: write a password: a = "secret"'),
        ("[quotas]\nuser = 'a'", "quotas must be a list: write [[quotas]]"),
        ("[[quotas]]\nuser = 'a'", "quotas.0: needs one of user"),
        ("[topics", "Expected ']'"),
    ],
)
def test_invalid_file_is_explained(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "seed.toml"
    file.write_text(content)
    with pytest.raises(SeedError) as invalid:
        read_seed(file)
    assert str(file) in str(invalid.value)
    assert expected in str(invalid.value)


def test_unusable_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SeedError, match="there is no such file or folder"):
        read_seed(tmp_path / "none")
    with pytest.raises(SeedError, match=r"neither \*.toml nor \*.jsonl"):
        read_seed(tmp_path)
    (tmp_path / "a.jsonl").write_text('"x"\n{\n')
    with pytest.raises(SeedError, match=r"a\.jsonl line 2: "):
        read_seed(tmp_path)
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text("[topics.a]")
    with pytest.raises(SeedError, match="another file has this topic too"):
        read_seed(tmp_path)
