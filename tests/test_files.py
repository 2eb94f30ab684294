"""What is on the disk when a file or a folder gets its name."""

import pytest

from minvenus import files
from minvenus.files import replaced_file, replaced_folder, write_text


def test_a_name_is_given_to_what_is_on_the_disk(tmp_path, monkeypatch):
    def sync(path):
        order.append((path.name, *sorted(entry.name for entry in tmp_path.iterdir())))

    order = []
    monkeypatch.setattr(files, "sync", sync)
    write_text(tmp_path / "a", "x")
    with replaced_folder(tmp_path / "b") as new:
        (new / "c").touch()
    unfinished = ".b.new", "a"
    assert order == [
        (".a.new", ".a.new"),
        ("c", *unfinished),
        (".b.new", *unfinished),
        (tmp_path.name, "a", "b"),
    ]


def test_an_error_of_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
    path = write_text(tmp_path / "a", "old")
    with pytest.raises(OSError, match=r"full: '.*/a'"), replaced_file(path) as new:
        new.write_text("half")
        raise OSError(28, "full")
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"
